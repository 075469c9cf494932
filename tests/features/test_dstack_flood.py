"""Whatever is in the place of dstack's agent, and however many clients ask, the interposer stays within the memory of its unit."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from support.responders import Activated, activated, marker, memory, tcp, verdict, waited
from support.shims import HEALTH, Script, scripted

CLIENTS = 256
MEMORY_MOST = 64 << 10
"""KiB, of the 128 MiB of its unit: the rest is for what the kernel keeps for its sockets."""
GET = f"GET {HEALTH} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
OTHER = b"GET /api/tasks HTTP/1.1\r\nHost: localhost\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
MIB = 1 << 20


def many(item: bytes) -> bytes:
    body = b'{"dcgm":{"overall_health":0,"incidents":[%s]}}'
    return body % b",".join([item] * ((MIB - len(body) - 64) // (len(item) + 1)))


async def _stalls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """All but the last byte of what may be collected."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(HEAD % (MIB - 512) + bytes(MIB - 513))
    await reader.read()


async def _chunks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a response in chunks of one byte, each with six bytes of framing."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * (MIB // 7))
    await reader.read()


async def _objects(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Small in bytes, and large once decoded."""
    body = many(b"{}")
    while await reader.readuntil(b"\r\n\r\n"):
        writer.write(HEAD % len(body) + body)


async def _endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send for ever, to a client that reads nothing."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(HEAD % (1 << 40))
    while True:
        writer.write(bytes(MIB))
        await writer.drain()


SHIMS: dict[str, tuple[Script, bytes]] = {
    "stalls": (_stalls, GET), "chunks": (_chunks, GET), "objects": (_objects, GET), "endless": (_endless, OTHER),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", SHIMS)
async def test_a_bad_shim_takes_no_more_memory_than_the_unit_has(tmp_path: Path, kind: str) -> None:
    script, request = SHIMS[kind]
    verdict(tmp_path, "failure")
    marker(tmp_path, "dstack")
    file = tmp_path / "gpuwarden.toml"
    file.write_text("[dstack]\nenabled = true\n")

    listener = tcp()
    async with scripted(script) as port:
        words = ("dstack-interposer", "--config", file, "--run-dir", tmp_path, "--shim", f"127.0.0.1:{port}")
        with activated(listener, *words, folder=tmp_path) as service:
            process = _listening(service)
            opened = [await asyncio.open_connection(*listener.getsockname()[:2], limit=1) for _ in range(CLIENTS)]
            most = 0
            for _, writer in opened:
                writer.write(request)
            for _ in range(60):
                most = max(most, memory(process)["Rss"])
                await asyncio.sleep(0.05)
            for _, writer in opened:
                writer.transport.abort()
    assert most < MEMORY_MOST, f"{most >> 10} MiB"


def _listening(service: Activated) -> int:
    waited(lambda: "listening" in service.log(), "the interposer")
    assert service.process is not None
    return service.process.pid
