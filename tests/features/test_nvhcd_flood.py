"""Any user of the host may connect to nvhcd: what its clients do takes little of its memory, and others are answered meanwhile."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from support.daemons import PATIENCE
from support.nvhcd import PREFACE, asked, resets
from support.quick import first_quick
from support.responders import Activated, activated, memory, unix, verdict, waited

NOBODY = 65534
RESETS = 100_000
"""Streams that are opened and reset: a service that keeps 1 KiB of each has 98 MiB more."""
GROWTH_MOST = 2 << 10
"""KiB of RSS, of which it has 25 to 29 MiB idle."""


def listening(service: Activated) -> int:
    waited(lambda: "node health check listening" in service.log(), "nvhcd")
    assert service.process is not None
    return service.process.pid


@pytest.mark.parametrize("connections", first_quick(1, [1, 20]))
async def test_rapid_resets_leave_no_memory_taken_and_keep_nobody_out(tmp_path: Path, connections: int) -> None:
    verdict(tmp_path)
    path = tmp_path / "nvhcd.sock"
    listener = unix(path)
    tmp_path.chmod(0o755)
    path.chmod(0o666)
    attacker = NOBODY if os.geteuid() == 0 and os.access("/root", os.X_OK) else os.geteuid()
    with activated(listener, "nvhcd", "--run-dir", tmp_path, folder=tmp_path) as service:
        process = listening(service)
        for _ in range(5):
            assert b'"fail_count":0' in await asked(path)
        before = memory(process)["Rss"]
        async with asyncio.timeout(PATIENCE):
            with resets(path, connections, attacker) as flood:
                while flood.sent < RESETS:
                    assert b'"fail_count":0' in await asked(path)
        assert b'"fail_count":0' in await asked(path)
        assert memory(process)["Rss"] - before <= GROWTH_MOST


@pytest.mark.slow
async def test_a_connection_has_one_response_and_then_a_goaway(tmp_path: Path) -> None:
    """Streams beside the first are not answered; the GOAWAY says that a client may ask for them again elsewhere."""
    verdict(tmp_path)
    path = tmp_path / "nvhcd.sock"
    with activated(unix(path), "nvhcd", "--run-dir", tmp_path, folder=tmp_path) as service:
        listening(service)
        data = await asyncio.to_thread(_all_of, path, PREFACE + _asks(1) + _asks(3) + _asks(5))
    assert data.count(b"fail_count") == 1
    frames = list(_frames(data))
    assert [(kind, stream) for kind, stream, _ in frames if kind in (0, 1)] == [(1, 1), (0, 1), (1, 1)]
    assert [payload for kind, _, payload in frames if kind == 7] == [(1).to_bytes(4, "big") + bytes(4)]


async def test_one_user_has_16_connections_and_a_new_one_replaces_the_oldest(tmp_path: Path) -> None:
    verdict(tmp_path)
    path = tmp_path / "nvhcd.sock"
    with activated(unix(path), "nvhcd", "--run-dir", tmp_path, folder=tmp_path) as service:
        process = listening(service)
        before = _files(process)
        idle = []
        for _ in range(40):
            idle.append(socket.socket(socket.AF_UNIX))
            idle[-1].connect(str(path))
        assert b'"fail_count":0' in await asked(path)
        waited(lambda: _files(process) - before <= 16, "connections that make room")
        for client in idle:
            client.close()


def _files(process: int) -> int:
    return sum(1 for _ in Path(f"/proc/{process}/fd").iterdir())


def _asks(stream: int) -> bytes:
    path = b"/nvhcd.HealthCheckService/RunHealthCheck"
    block = b"\x83\x86\x10\x0a:authority\x01a\x10\x05:path" + bytes([len(path)]) + path
    return len(block).to_bytes(3, "big") + b"\x01\x05" + stream.to_bytes(4, "big") + block


def _all_of(path: Path, sent: bytes) -> bytes:
    data = b""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(60)
        client.connect(str(path))
        client.sendall(sent)
        while piece := client.recv(1 << 16):
            data += piece
    return data


def _frames(data: bytes) -> list[tuple[int, int, bytes]]:
    frames = []
    while data:
        end = 9 + int.from_bytes(data[:3], "big")
        frames.append((data[3], int.from_bytes(data[5:9], "big"), data[9:end]))
        data = data[end:]
    return frames
