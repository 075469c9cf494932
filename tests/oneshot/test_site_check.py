"""Site checks that are run by somebody else: one connection a run, by name only, given up with the connection."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuwarden.oneshot.site_check import serve
from gpuwarden_collectors.plugin.options import SiteCheck
from gpuwarden_collectors.plugin.service import run_by_service
from support.daemons import alive
from support.waiting import until


@contextmanager
def runner(folder: Path, checks: dict[str, SiteCheck]) -> Iterator[str]:
    """Run the checks as systemd does: a run for each connection, here in a thread."""
    path = folder / "checks.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=serve, args=(checks, folder, connection), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield str(path)
        listener.shutdown(socket.SHUT_RDWR)


def shell(script: str) -> SiteCheck:
    return SiteCheck(command=("/bin/sh", "-c", script))


async def test_a_check_is_run_by_its_name_and_its_exit_code_and_bytes_come_back(tmp_path: Path) -> None:
    with runner(tmp_path, {"nhc": shell(r"printf 'bad \377'; printf why >&2; exit 2")}) as path:
        done = await run_by_service(path, "nhc", 30.0)
    assert (done.exit_code, done.stdout, done.stderr, done.error) == (2, b"bad \xff", b"why", "")


@pytest.mark.parametrize("name", ["other", "", "/bin/sh", "off", "../nhc", "n" * 1000, "\0"])
async def test_what_is_not_configured_is_not_run_whatever_it_is_called(tmp_path: Path, name: str) -> None:
    ran = tmp_path / "ran"
    with runner(tmp_path, {"nhc": shell(f"touch {ran}"), "off": SiteCheck(("/bin/true",), enabled=False)}) as path:
        done = await run_by_service(path, name, 30.0)
    assert done.exit_code is None
    assert "no site check" in done.error
    assert not ran.exists()


async def test_one_check_is_not_run_twice_at_a_time(tmp_path: Path) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    with runner(tmp_path, {"slow": shell(f"touch {tmp_path}/began; read x < {go}")}) as path:
        first = asyncio.create_task(run_by_service(path, "slow", 30.0))
        await until((tmp_path / "began").exists)
        second = await run_by_service(path, "slow", 30.0)
        assert "has not ended" in second.error
        go.write_text("go\n")
        assert (await first).exit_code == 0


async def test_a_run_that_nobody_waits_for_any_more_is_ended(tmp_path: Path) -> None:
    with runner(tmp_path, {"slow": shell(f"echo $$ > {tmp_path}/pid; exec sleep 1000")}) as path:
        asked = asyncio.create_task(run_by_service(path, "slow", 600.0))
        await until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
        pid = int((tmp_path / "pid").read_text())
        asked.cancel()
        await until(lambda: not alive(pid))


@pytest.mark.parametrize("answer", [b"", b"nothing", b"[]", b"{}", b'{"exit_code": "0"}', b"\xff" * 300_000])
async def test_an_invalid_response_is_reported_as_none(tmp_path: Path, answer: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(answer)
        writer.close()

    server = await asyncio.start_unix_server(talk, str(tmp_path / "s"))
    done = await run_by_service(str(tmp_path / "s"), "nhc", 30.0)
    server.close()
    assert (done.exit_code, "gave no answer" in done.error) == (None, True)


async def test_a_missing_listener_is_reported(tmp_path: Path) -> None:
    done = await run_by_service(str(tmp_path / "nobody"), "nhc", 30.0)
    assert done.exit_code is None
    assert "cannot be started by way of" in done.error
