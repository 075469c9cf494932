"""Whatever a service, or somebody in its place, does to a connection: one bounded failure, and the next answer counts again."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator

import pytest

from gpuwarden_collectors.base import host_clock
from gpuwarden_collectors.cloud.aws import Aws
from gpuwarden_collectors.cloud.facts import Answer, AnswerKind
from gpuwarden_collectors.cloud.metadata import Metadata, MetadataError
from gpuwarden_collectors.cloud.reply import BODY_MOST
from support.metadata import PORTAL, AwsCloud, Fault, Simulator, raw, reset, silence, status
from support.waiting import PATIENCE

NOTICE = b'{"action":"terminate","time":"2026-11-21T03:02:00Z"}'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"


@pytest.fixture
async def service() -> AsyncIterator[Simulator]:
    async with Simulator(AwsCloud()) as simulator:
        yield simulator


@pytest.fixture
async def metadata(service: Simulator) -> AsyncIterator[Metadata]:
    metadata = Metadata(service.endpoint, timeout=PATIENCE)
    yield metadata
    await metadata.close()


BROKEN: dict[str, Fault] = {
    "silence": silence,
    "reset in the body": reset,
    "closed at once": raw(b""),
    "half a head": raw(b"HTTP/1.1 200 OK\r\nContent-"),
    "no HTTP": raw(b"SSH-2.0-OpenSSH_9.2\r\n"),
    "a byte now and then": raw(HEAD + b"Content-Length: 500\r\n\r\n", forever=b" ", pause=0.05),
    "a body without an end": raw(HEAD + b"\r\n", forever=b"x" * 4096),
    "chunks without an end": raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", forever=b"1000\r\n" + b"x" * 4096 + b"\r\n"),
    "headers without an end": raw(b"HTTP/1.1 200 OK\r\n", forever=b"X-More: " + b"y" * 1000 + b"\r\n"),
    "one header without an end": raw(b"HTTP/1.1 200 OK\r\nX-Long: ", forever=b"y" * 4096),
    "1 GiB announced": raw(HEAD + b"Content-Length: 1073741824\r\n\r\n", forever=b"x" * 4096),
    "a gzip bomb": raw(
        HEAD + b"Content-Encoding: gzip\r\nContent-Length: 1200\r\n\r\n" + gzip.compress(b"\0" * 1_000_000)[:1200]
    ),
    "lengths that differ": raw(HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n" + NOTICE),
    "chunks that are none": raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + NOTICE),
    "continue and nothing": raw(b"HTTP/1.1 100 Continue\r\n\r\n", forever=b"HTTP/1.1 100 Continue\r\n\r\n", pause=0.02),
}  # fmt: skip


@pytest.mark.parametrize("fault", BROKEN)
async def test_a_broken_exchange_is_no_answer_and_the_next_one_is(
    service: Simulator, metadata: Metadata, fault: str
) -> None:
    service.always, metadata.timeout = BROKEN[fault], 2.0
    async with asyncio.timeout(60.0):
        with pytest.raises(MetadataError, match=r"GET http://127\.0\.0\.1"):
            await metadata.get("/latest/meta-data/instance-id")
    service.always, metadata.timeout = None, PATIENCE
    assert (await metadata.get("/latest/meta-data/instance-id")).status == 401


async def test_an_answer_of_http_0_9_is_none(service: Simulator, metadata: Metadata) -> None:
    service.always = raw(NOTICE)
    with pytest.raises(MetadataError):
        await metadata.get("/")


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
async def test_no_redirect_is_followed(service: Simulator, metadata: Metadata, code: int) -> None:
    async with Simulator(AwsCloud()) as elsewhere:
        for place in (f"{elsewhere.endpoint}/x", "https://127.0.0.1/x", "/latest/meta-data/spot/instance-action"):
            service.faults.append(status(code, NOTICE, Location=place))
            assert (await metadata.get("/")).status == code
        assert (elsewhere.requests, len(service.requests)) == ([], 3)


async def test_no_proxy_is_used_whatever_the_environment_sets(
    service: Simulator, metadata: Metadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Simulator(AwsCloud()) as proxy:
        proxy.always = status(200, NOTICE)
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.endpoint)
        monkeypatch.setenv("NO_PROXY", "")
        assert (await metadata.get("/")).status == 401
        assert (proxy.requests, service.requests[0].path) == ([], "/")


async def test_connections_are_kept(service: Simulator, metadata: Metadata) -> None:
    for _ in range(20):
        await metadata.get("/latest/meta-data/spot/instance-action")
    assert (service.connections, len(service.requests)) == (1, 20)


async def test_as_much_as_is_allowed_is_read_and_a_byte_more_is_not(service: Simulator, metadata: Metadata) -> None:
    service.faults.append(status(200, b"x" * BODY_MOST))
    assert len((await metadata.get("/")).body) == BODY_MOST
    service.faults.append(status(200, b"x" * (BODY_MOST + 1)))
    with pytest.raises(MetadataError, match="more than"):
        await metadata.get("/")


async def test_nobody_there_is_no_answer(service: Simulator) -> None:
    metadata = Metadata("http://127.0.0.1:1", timeout=0.5)
    with pytest.raises(MetadataError):
        await metadata.get("/")
    await metadata.close()


async def asked(aws: Aws) -> Answer:
    return await next(q.ask for q in aws.questions if q.name == "spot")()


@pytest.mark.parametrize("fault", [*BROKEN, "portal", "500", "redirect"])
async def test_no_broken_exchange_makes_a_notice_or_ends_one(service: Simulator, fault: str) -> None:
    """Asked through a whole source, token and all."""
    more = {
        "portal": PORTAL,
        "500": status(500, NOTICE),
        "redirect": status(302, NOTICE, Location="http://127.0.0.1:1/"),
    }
    metadata = Metadata(service.endpoint, timeout=PATIENCE)
    aws = Aws(metadata, host_clock)
    assert (await asked(aws)).kind is AnswerKind.NONE
    service.always, metadata.timeout = {**BROKEN, **more}[fault], 2.0
    async with asyncio.timeout(60.0):
        assert (await asked(aws)).kind is AnswerKind.UNKNOWN
    service.always, metadata.timeout = None, PATIENCE
    assert (await asked(aws)).kind is AnswerKind.NONE
    await aws.close()
