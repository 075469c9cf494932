"""The node health check that ft_launcher asks for: what is answered, and how it is written."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.features.nvhcd.connection import CLIENTS_MOST, CLIENTS_OF_USER
from gpuwarden.features.nvhcd.server import HealthCheckService, Service, outcome, response
from gpuwarden.features.nvhcd.wire import Response, encoded
from gpuwarden.integrations.published import Marker, Published, Reader, Verdict
from support import nvhcd
from support.daemons import PATIENCE
from support.responders import BOOT, marker, unix, verdict

FAILED = Marker("failure", "gpuwarden: failure gpu=3 xid=79", "xid")
PERSON = Marker("person", "gpuwarden: operator mending")
ENDS = Marker("termination", "gpuwarden: termination boot=1", "")


def published(state: str = "healthy", mode: str = "enforce", marker: Marker | None = None, **more: object) -> Published:
    return Published(Verdict(mode=mode, state=state, **more), marker)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seen", "failed", "unknown"),
    [
        (published(), (), ""),
        (published("failure"), (), ""),
        (published("warning"), (), ""),
        (published("failure", marker=FAILED), ("xid",), ""),
        (published(marker=FAILED, stale="old"), ("xid",), ""),
        (published(marker=ENDS), ("termination",), ""),
        (published("unknown"), (), "cannot observe"),
        (published(stale="the verdict is old"), (), "old"),
        (Published(None, None, "there is none"), (), "there is none"),
        (Published(None, FAILED, "there is none"), ("xid",), ""),
        (Published(published().verdict, None, "", "no marker of ours"), (), "no marker of ours"),
        (published("failure", mode="observe", marker=FAILED), (), ""),
        (published(mode="observe", marker=PERSON), ("person",), ""),
        (published(marker=FAILED, simulated=True), (), "simulated"),
    ],
)
def test_a_node_that_is_excluded_fails_and_everything_else_passes(
    seen: Published, failed: tuple[str, ...], unknown: str
) -> None:
    checks = outcome(seen, mode="enforce")
    assert checks.failed == failed
    assert unknown in checks.unknown
    assert bool(checks.unknown) == bool(unknown)
    document = json.loads(response(checks).output)
    assert (document["fail_count"], document["failed_checks"]) == (len(failed), list(failed))


def fields(data: bytes) -> dict[int, int | bytes]:
    """A message of protobuf taken apart."""
    by_number: dict[int, int | bytes] = {}
    while data:
        key, data = varint(data)
        value, data = varint(data)
        by_number[key >> 3] = value
        if key & 7 == 2:
            by_number[key >> 3], data = data[:value], data[value:]
    return by_number


def varint(data: bytes) -> tuple[int, bytes]:
    value = shift = 0
    for index, byte in enumerate(data):
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, data[index + 1 :]
    raise AssertionError(data)


@given(st.booleans(), st.integers(0, 2**31 - 1), st.text(max_size=300), st.text(max_size=300))
def test_a_response_is_written_as_protobuf_has_it(success: bool, code: int, output: str, error: str) -> None:
    def text(value: str) -> bytes:
        return value.encode("utf-8", "replace")

    wanted = {1: int(success), 2: code, 3: text(output), 4: text(error)}
    by_number = fields(encoded(Response(success, code, output, error)))
    assert by_number == {number: value for number, value in wanted.items() if value}


@asynccontextmanager
async def service(folder: Path) -> AsyncIterator[Path]:
    path = folder / "nvhcd.sock"
    listener, stop = unix(path), asyncio.Event()
    listener.setblocking(False)
    reader = Reader(folder, "nvhcd", boot_id=BOOT)
    served = Service(HealthCheckService(reader=reader, mode="enforce", log=structlog.get_logger()))
    task = asyncio.create_task(served.serve(listener, stop))
    try:
        yield path
    finally:
        stop.set()
        await asyncio.wait_for(task, PATIENCE)


async def asked(path: Path, request: bytes = b"") -> dict[str, object]:
    output = fields(await nvhcd.asked(path, request, patience=PATIENCE))[3]
    assert isinstance(output, bytes)
    document: dict[str, object] = json.loads(output)
    return document


async def test_that_nothing_is_known_of_a_node_which_passes_is_in_the_log(tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as log:
        async with service(tmp_path) as path:
            assert (await asked(path))["fail_count"] == 0
            verdict(tmp_path, "unknown")
            assert (await asked(path))["fail_count"] == 0
    lines = [line for line in log if "without a verdict" in line["event"]]
    assert [line["log_level"] for line in lines] == ["warning"] * 2
    assert "cannot observe this node" in lines[1]["why"]


async def test_it_answers_whatever_the_request_holds(tmp_path: Path) -> None:
    verdict(tmp_path)
    async with service(tmp_path) as path:
        for request in (b"", b"\x0a\x0a--no-slurm", b"\xff" * 100, *[b"x" * 60_000] * 5):
            assert (await asked(path, request))["fail_count"] == 0
        marker(tmp_path, "nvhcd")
        answers = await asyncio.gather(*(asked(path) for _ in range(CLIENTS_OF_USER)))
        assert {answer["fail_count"] for answer in answers} == {1}


async def test_many_idle_clients_lock_nobody_out(tmp_path: Path) -> None:
    verdict(tmp_path)
    async with service(tmp_path) as path:
        idle_clients = [socket.socket(socket.AF_UNIX) for _ in range(CLIENTS_MOST * 2)]
        for idle in idle_clients:
            idle.connect(str(path))
        assert (await asked(path))["failed_checks"] == []
        for idle in idle_clients:
            idle.close()


async def test_what_is_no_grpc_ends_its_own_connection_alone(tmp_path: Path) -> None:
    verdict(tmp_path)
    async with service(tmp_path) as path:
        for sent in (b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 5000, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100):
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(sent)
            writer.write_eof()
            async with asyncio.timeout(PATIENCE):
                await reader.read()
            writer.close()
        assert (await asked(path))["fail_count"] == 0


async def test_another_method_is_not_answered_as_a_health_check(tmp_path: Path) -> None:
    verdict(tmp_path)
    async with service(tmp_path) as path:
        with pytest.raises(GRPCError) as refused:
            await nvhcd.asked(path, method="/grpc.health.v1.Health/Check")
    assert refused.value.status is Status.UNIMPLEMENTED
