"""The interposer between dstack's server and dstack's agent of this host: what it forwards, and what it answers itself."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog

from gpuwarden.base.addresses import Address
from gpuwarden.config.model import ConfigError, load
from gpuwarden.config.sources import Sources
from gpuwarden.features.dstack.interposer import Interposer
from gpuwarden.integrations.published import Reader
from support.daemons import PATIENCE
from support.responders import BOOT, marker, verdict
from support.shims import HEALTH, Shim, scripted, shim

GET = f"GET {HEALTH} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


@asynccontextmanager
async def interposer(run_dir: Path, port: int, *, speaks: bool = True, **more: Any) -> AsyncIterator[int]:
    """Its port. It is stopped in the end as SIGTERM does."""
    listener, stop = socket.create_server(("127.0.0.1", 0)), asyncio.Event()
    listener.setblocking(False)
    reader = Reader(run_dir, "dstack", boot_id=BOOT)
    served = Interposer(
        shim=Address("127.0.0.1", port), reader=reader, enabled=speaks, mode="enforce", log=structlog.get_logger(),
        **{"shim_within": PATIENCE, **more},
    )  # fmt: skip
    task = asyncio.create_task(served.serve(listener, stop))
    try:
        yield listener.getsockname()[1]
    finally:
        stop.set()
        await asyncio.wait_for(task, PATIENCE)


async def ask(port: int, *sent: bytes, until: bytes = b"", half_close: bool = False) -> bytes:
    """All that is answered to these pieces, each sent when something came for the one before; up to `until`, else to the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    got = b""
    try:
        async with asyncio.timeout(PATIENCE):
            for number, piece in enumerate(sent):
                if number:
                    got += await reader.read(1 << 16)
                writer.write(piece)
            if half_close:
                writer.write_eof()
            while not (until and until in got) and (data := await reader.read(1 << 16)):
                got += data
    except ConnectionResetError:
        pass
    finally:
        writer.close()
    return got


async def health(port: int) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as client, client.get(f"http://127.0.0.1:{port}{HEALTH}") as answer:
        return answer.status, json.loads(await answer.read())["dcgm"]


@pytest.mark.parametrize("shim_at", ["127.0.0.1:10998", "localhost:0"])
def test_a_shim_that_was_not_moved_is_a_fault_of_the_configuration(shim_at: str) -> None:
    with pytest.raises(ConfigError, match="to which the shim was moved"):
        load(Sources(file=None, environment={"GPUWARDEN_DSTACK__SHIM": shim_at}))


# --- what goes through


def canned(answer: bytes, *, close: bool = True, more: bytes = b"") -> Any:
    """A script that answers any request so; `more` once more was sent."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        if more:
            writer.write(more + await reader.read(1 << 16))
        if not close:
            await reader.read()

    return script


CLOSE = b"Connection: close\r\n"
EXCHANGES = {
    "odd spelling and order of headers": (
        b"GET /api/tasks HTTP/1.1\r\nhOsT: x\r\nX-b: 1\r\nx-A: 2\r\n\r\n",
        canned(b"HTTP/1.1 207 Multi-Odd\r\nx-ZED: 1\r\nA:2\r\nContent-Length: 3\r\n" + CLOSE + b"\r\nabc"),
    ),
    "no body to HEAD": (
        b"HEAD /api/instance/health HTTP/1.1\r\nHost: x\r\n\r\n",
        canned(b"HTTP/1.1 200 OK\r\nContent-Length: 14\r\n" + CLOSE + b"\r\n"),
    ),
    "chunks with extensions and trailers": (
        b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n",
        canned(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0003\r\ndef\r\n0\r\nX-After: 1\r\n\r\n"),
    ),
    "a body that ends with the connection": (b"GET /x HTTP/1.0\r\n\r\n", canned(b"HTTP/1.0 200 OK\r\n\r\nall of it")),
    "answers before the answer": (
        b"POST /x HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n",
        canned(b"HTTP/1.1 100 Continue\r\n\r\n", more=b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\ntook"),
    ),
    "another protocol": (
        b"GET /x HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: odd\r\n\r\n",
        canned(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: odd\r\n\r\n\x00\xff", more=b"received "),
    ),
    "what is no HTTP": (b"\x16\x03\x01 not http\r\n\r\n", canned(b"HTTP/1.1 400 Bad Request\r\n\r\nno")),
    "an answer that is no HTTP": (b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n", canned(b"\x00\x01\x02 HTTP is not spoken")),
    "an answer that is cut off": (
        b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n", canned(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf of"),
    ),
    "a head that is too large": (b"GET /x HTTP/1.1\r\nX: " + b"x" * (1 << 18) + b"\r\n\r\n", canned(b"HTTP/1.1 431 No\r\n\r\n")),
}  # fmt: skip


@pytest.mark.parametrize("name", EXCHANGES)
async def test_other_requests_go_through_byte_for_byte(tmp_path: Path, name: str) -> None:
    sent, script = EXCHANGES[name]
    verdict(tmp_path, "failure")
    marker(tmp_path, "dstack")
    pieces = (sent, b"more") if name in ("answers before the answer", "another protocol") else (sent,)
    async with scripted(script) as port, interposer(tmp_path, port) as between:
        directly = await ask(port, *pieces)
        assert directly
        assert await ask(between, *pieces) == directly


@pytest.mark.parametrize("speaks", [False, True])
async def test_in_mode_observe_and_while_it_is_not_enabled_health_goes_through_too(
    tmp_path: Path, *, speaks: bool
) -> None:
    verdict(tmp_path, "failure", mode="observe" if speaks else "enforce")
    marker(tmp_path, "dstack")
    odd = b'HTTP/1.1 200 Fine\r\ncontent-LENGTH: 48\r\n\r\n{"dcgm":{"overall_health":15,"incidents":null}}\n'
    async with scripted(canned(odd)) as port, interposer(tmp_path, port, speaks=speaks) as between:
        assert await ask(between, GET) == odd


async def test_large_and_streamed_bodies_and_sockets_go_through_whole(tmp_path: Path) -> None:
    large = bytes(range(256)) * 80_000  # 20 MB
    async with shim() as agent, interposer(tmp_path, agent.port) as between, aiohttp.ClientSession() as client:
        base = f"http://127.0.0.1:{between}"
        async with client.post(f"{base}/api/tasks", data=io.BytesIO(large)) as answer:
            assert answer.status == 200
        assert agent.submitted == [large]
        async with client.get(f"{base}/stream") as answer:
            assert await answer.read() == b"".join(b"piece %d\n" % number * 2000 for number in range(3))
        async with client.ws_connect(f"{base}/socket") as web_socket:
            await web_socket.send_str("this")
            assert await web_socket.receive_str() == "received this"


async def test_pipelined_requests_are_answered_in_order_the_intercepted_ones_among_them(tmp_path: Path) -> None:
    verdict(tmp_path, "warning", reason="thermal_slowdown")
    other = b"GET /api/healthcheck HTTP/1.1\r\nHost: x\r\n\r\n"
    last = b"GET /api/healthcheck HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    async with shim() as agent, interposer(tmp_path, agent.port) as between:
        got = await ask(between, other + GET + other + GET + last)
    kinds = ["ours" if part.count(b"thermal_slowdown") else "theirs" for part in got.split(b"HTTP/1.1 200 OK")[1:]]
    assert kinds == ["theirs", "ours", "theirs", "ours", "theirs"]


async def test_a_client_that_half_closes_still_gets_the_response(tmp_path: Path) -> None:
    verdict(tmp_path, "warning", reason="thermal_slowdown")
    async with (
        scripted(canned(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")) as port,
        interposer(tmp_path, port) as between,
    ):
        assert (await ask(between, b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n", half_close=True)).endswith(b"ok")
        assert b"thermal_slowdown" in await ask(between, GET, half_close=True)


async def test_a_shim_that_is_not_there_is_a_connection_that_closes(tmp_path: Path) -> None:
    """A deployment by dstack takes any answer for the shim's and fails on it, and tries again after none."""
    verdict(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    async with interposer(tmp_path, port) as between:
        assert await ask(between, b"GET /api/healthcheck HTTP/1.1\r\nHost: x\r\n\r\n") == b""


async def test_a_connection_that_the_shim_closes_is_closed(tmp_path: Path) -> None:
    async with (
        scripted(canned(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")) as port,
        interposer(tmp_path, port) as between,
    ):
        assert (await ask(between, b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n")).endswith(b"ok")


# --- its own responses


async def test_an_excluded_node_fails_and_is_well_again_when_it_is_restored(tmp_path: Path) -> None:
    verdict(tmp_path)
    async with shim() as agent, interposer(tmp_path, agent.port) as between:
        assert await health(between) == (200, None)
        path = marker(tmp_path, "dstack", reason="gpuwarden: failure gpu=3 xid=79")
        status, dcgm = await health(between)
        assert (status, dcgm["overall_health"]) == (200, 20)
        assert dcgm["incidents"][0]["error_message"] == "gpuwarden: failure gpu=3 xid=79"
        verdict(tmp_path, age=5000)  # the daemon is gone, and with it whatever it wrote
        path.unlink()
        assert (await health(between))[1]["overall_health"] == 20
        (tmp_path / "verdict").unlink()
        assert (await health(between))[1]["overall_health"] == 20
        verdict(tmp_path, "unknown")
        assert (await health(between))[1]["overall_health"] == 20
        verdict(tmp_path)
        assert await health(between) == (200, None)


async def test_gpuwardens_incident_is_listed_beside_dcgms(tmp_path: Path) -> None:
    verdict(tmp_path, "warning", reason="thermal_slowdown")
    theirs = {
        "system": 4, "health": 20, "error_message": "theirs", "error_code": 3, "entity_group_id": 1, "entity_id": 0,
    }  # fmt: skip
    agent = Shim(health=json.dumps({"dcgm": {"overall_health": 20, "incidents": [theirs]}}).encode())
    async with shim(agent), interposer(tmp_path, agent.port) as between:
        dcgm = (await health(between))[1]
    assert dcgm["overall_health"] == 20
    assert [each["error_message"] for each in dcgm["incidents"]] == ["theirs", "gpuwarden: warning thermal_slowdown"]


async def refuses(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    """Close the connection without an answer."""


async def sends_nothing(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def begins(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
    await reader.read()


async def never_ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b" " * (1 << 16))
        await writer.drain()


BAD = {
    "closes": refuses, "sends nothing": sends_nothing, "stops in the middle": begins, "never ends": never_ends,
    "speaks no HTTP": canned(b"\x00\x01\x02\r\n\r\n"), "500": canned(b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n"),
    "404": canned(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"),
    "a page": canned(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>"),
    "packed": canned(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\x00"),
    "redirects": canned(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"),
}  # fmt: skip


ENDLESS = ("sends nothing", "stops in the middle", "never ends")


def within(name: str) -> float:
    """Seconds that this shim has: few, where they are waited for in any case."""
    return 0.3 if name in ENDLESS else PATIENCE


@pytest.mark.parametrize("name", BAD)
async def test_a_failure_is_reported_in_time_whatever_the_shim_does(tmp_path: Path, name: str) -> None:
    verdict(tmp_path, "failure")
    marker(tmp_path, "dstack")
    async with scripted(BAD[name]) as port, interposer(tmp_path, port, shim_within=within(name)) as between:
        status, dcgm = await health(between)
    assert (status, dcgm["overall_health"], len(dcgm["incidents"])) == (200, 20, 1)


@pytest.mark.parametrize("name", ["closes", "sends nothing", "never ends"])
async def test_a_silent_shim_of_a_healthy_node_is_answered_for(tmp_path: Path, name: str) -> None:
    verdict(tmp_path)
    async with scripted(BAD[name]) as port, interposer(tmp_path, port, shim_within=within(name)) as between:
        assert await health(between) == (200, {"overall_health": 0, "incidents": []})


async def test_a_refusal_of_a_healthy_node_s_shim_stays_as_it_is(tmp_path: Path) -> None:
    verdict(tmp_path)
    async with scripted(BAD["404"]) as port, interposer(tmp_path, port) as between:
        assert (await ask(between, GET, until=b"\r\n\r\n")).startswith(b"HTTP/1.1 404")


# --- its clients


async def test_one_too_many_takes_the_place_of_the_oldest_that_waits_for_nothing(tmp_path: Path) -> None:
    verdict(tmp_path)
    asked, held = asyncio.Event(), asyncio.Event()

    async def holds(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await held.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")

    async with scripted(holds) as port, interposer(tmp_path, port, clients_most=4) as between:
        waiting = asyncio.create_task(ask(between, b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n"))
        await asyncio.wait_for(asked.wait(), PATIENCE)
        idle = [await asyncio.open_connection("127.0.0.1", between) for _ in range(40)]
        async with asyncio.timeout(PATIENCE):
            for reader, _ in idle[:36]:
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""
        held.set()
        assert (await waiting).endswith(b"ok")
        for _, writer in idle:
            writer.close()


async def test_what_has_begun_is_answered_when_it_is_stopped(tmp_path: Path) -> None:
    asked, go = asyncio.Event(), asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await go.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await reader.read()

    verdict(tmp_path)
    async with scripted(slow) as port:
        async with interposer(tmp_path, port) as between:
            waiting = asyncio.create_task(ask(between, b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n"))
            await asyncio.wait_for(asked.wait(), PATIENCE)
            asyncio.get_running_loop().call_later(0.2, go.set)
        assert (await waiting).endswith(b"ok")
