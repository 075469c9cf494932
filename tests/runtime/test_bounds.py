"""Whatever comes in from outside has a bound: more than that is refused, and the daemon goes on."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from gpuwarden.config.model import ConfigError, load
from gpuwarden.config.sources import Sources
from gpuwarden.control.handlers import EVENTS_MOST
from gpuwarden.publish.web.listener import HEADER_LIMIT
from gpuwarden_collectors.kernel_log.sources import LINE_MAX
from support.daemons import FakeHost, RunningDaemon
from support.responders import memory
from support.socket_talk import ask

FLOOD = 8 << 20
"""Bytes at each door."""
MEMORY = 24.0
"""MiB that the daemon may take while all doors are flooded at once: each keeps some 100 KiB of what it is sent."""


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path, 1)


@pytest.mark.parametrize("where", ["gpuwarden.toml", "conf.d/large.toml"])
def test_a_configuration_file_that_is_too_large_is_a_fault_and_is_not_read_to_its_end(
    tmp_path: Path, where: str
) -> None:
    file = tmp_path / "gpuwarden.toml"
    (tmp_path / "conf.d").mkdir()
    file.touch()
    (tmp_path / where).write_text("# more\n" * 200_000)
    with pytest.raises(ConfigError, match="expected at most 1048576 bytes"):
        load(Sources(file=file, required=True))


@pytest.mark.slow
def test_one_that_is_too_large_is_refused_by_a_reload_as_well(host: FakeHost) -> None:
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        host.config.write_text("# more\n" * 200_000)
        done = host.command("reload", "--run-dir", host.run_dir)
        assert (done.returncode, "expected at most" in done.stderr) == (64, True)
        daemon.wait_status("healthy")


@pytest.mark.slow
async def test_numbers_in_questions_are_bounded(host: FakeHost) -> None:
    control = host.run_dir / "control.sock"
    with host.daemon():
        for limit in (EVENTS_MOST + 1, 0, -1, 1 << 70, "9", None):
            assert (await ask(control, {"verb": "events", "limit": limit}))["code"] == 64
        for line in (b"[" * 60_000 + b"\n", b'{"verb":' * 8_000 + b"\n"):
            assert (await ask(control, line))["ok"] is False
        assert (await ask(control, {"verb": "status"}))["ok"] is True


def _sent(connect: Callable[[], socket.socket], first: bytes, piece: bytes) -> None:
    """Send FLOOD bytes, over a new connection whenever one is closed."""
    left = FLOOD
    while left > 0:
        with suppress(OSError), connect() as talk:
            talk.settimeout(60.0)
            talk.sendall(first)
            while left > 0:
                left -= talk.send(piece)
        left -= len(piece)  # a client that is disconnected at once comes to an end, too


def _unix(path: Path) -> Callable[[], socket.socket]:
    def connect() -> socket.socket:
        talk = socket.socket(socket.AF_UNIX)
        talk.connect(str(path))
        return talk

    return connect


def _doors(host: FakeHost, daemon: RunningDaemon) -> list[Callable[[], None]]:
    """Return a function for each input of the daemon; each runs in a thread of its own."""

    def tcp() -> socket.socket:
        return socket.create_connection(("127.0.0.1", daemon.port), timeout=60.0)

    def kernel_log() -> None:
        with host.kmsg.open("ab") as file:
            for _ in range(FLOOD // LINE_MAX // 2):
                file.write(b"4,1,1,-;NVRM: Xid (PCI:0000:1b:00): 95, " + b"x" * 2 * LINE_MAX)
                file.flush()
            file.write(b"\n")

    piece = b"x" * 65_536
    return [
        lambda: _sent(tcp, b"GET /", piece),
        lambda: _sent(tcp, b"GET /metrics HTTP/1.1\r\nHost: a\r\nX: ", piece),
        lambda: _sent(tcp, b"GET /metrics HTTP/1.1\r\n", b"".join(b"X%d: y\r\n" % n for n in range(8_000))),
        lambda: _sent(tcp, b"POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n", piece),
        lambda: _sent(tcp, b"\x16\x03\x01", piece),
        lambda: _sent(_unix(host.run_dir / "control.sock"), b'{"verb":"', piece),
        lambda: _sent(_unix(host.run_dir / "job.sock"), b'{"verb":"', piece),
        kernel_log,
    ]


def own_memory(pid: int) -> float:
    """MiB that are this process' alone."""
    return memory(pid)["Pss_Anon"] / 1024


@pytest.mark.slow
def test_a_flood_at_every_door_at_once_is_answered_with_the_verdict_and_kept_nowhere(host: FakeHost) -> None:
    flood = host.folder / "flood"
    flood.write_text("#!/bin/sh\nexec yes flood\n")
    flood.chmod(0o755)
    host.configure(f'[plugins.flood]\ncommand = ["{flood}"]\ninterval = "1s"\ntimeout = "2s"\n')
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        before, passes = own_memory(daemon.process.pid), daemon.heartbeat()["sequence"]
        threads = [threading.Thread(target=door) for door in _doors(host, daemon)]
        for thread in threads:
            thread.start()
        most = 0.0
        while any(thread.is_alive() for thread in threads):
            most = max(most, own_memory(daemon.process.pid) - before)
            threads[0].join(0.05)
            next((thread for thread in threads if thread.is_alive()), threads[0]).join(0.05)
        assert most < MEMORY
        now = daemon.heartbeat()
        assert (now["status"], now["reasons"][:1]) != ("unknown", ["starting"])
        daemon.wait(lambda: daemon.heartbeat()["sequence"] > passes + 5, "passes to go on")
        assert daemon.get("/metrics")[0] == 200
        assert host.order("status").returncode in (0, 1, 2)


@pytest.mark.slow
def test_a_header_may_have_its_length_and_no_byte_more(host: FakeHost) -> None:
    with host.daemon() as daemon:
        for length, code in ((HEADER_LIMIT - 100, b"200"), (4 * HEADER_LIMIT, b"400")):
            with socket.create_connection(("127.0.0.1", daemon.port), timeout=60.0) as talk:
                talk.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: " + b"x" * length + b"\r\n\r\n")
                assert talk.recv(4096).split(b" ", 2)[1] == code
