"""The run time of commands as whole processes, and of the daemon until it serves, is healthy, and reports READY to systemd.

Cold: no page of the interpreter, the packages and the library is in memory, except those that other processes map
(POSIX_FADV_DONTNEED), as on a node that boots.

`python -c pass` is measured in the same turns: it is the cost of any Python command here before its first line.

A goal is stricter than the requirement, is printed beside it, and does not change the exit code. Compiled modules are needed: `make bytecode`.
"""

from __future__ import annotations

import http.client
import json
import os
import select
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import aiohttp

import gpuwarden
import gpuwarden_collectors
from common import fake_host, spread, table
from support.daemons import FakeHost

RUNS = 11
POLL = 0.001
PATIENCE = 30.0
COMMAND = Path(sys.executable).with_name("gpuwarden")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def until(moment: Callable[[], bool], started: float) -> float:
    """Return the milliseconds from `started` until `moment` holds. Raises TimeoutError."""
    while not moment():
        if time.perf_counter() - started > PATIENCE:
            raise TimeoutError(f"waited {PATIENCE:g} s in vain")
        time.sleep(POLL)
    return (time.perf_counter() - started) * 1e3


def listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def wait_for_end(process: subprocess.Popen[bytes]) -> None:
    """Wait for the exit without the delay of `Popen.wait`, which polls if it has a timeout. Raises TimeoutError."""
    descriptor = os.pidfd_open(process.pid)
    try:
        if not select.select([descriptor], [], [], PATIENCE)[0]:
            raise TimeoutError(f"{process.args!r} has not ended within {PATIENCE:g} s")
    finally:
        os.close(descriptor)


def forget(*folders: Path) -> None:
    """Drop the pages of their files from the page cache, unless a process maps them."""
    for file in (file for folder in folders for file in folder.rglob("*")):
        with suppress(OSError), file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def start(host: FakeHost, took: dict[str, list[float]], how: str) -> None:
    """Measure one daemon from exec to its first healthy heartbeat, then stop it."""
    port, manager = free_port(), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(host.folder / "notify"))
    manager.setblocking(False)
    command = (COMMAND, "run", "--config", host.config, "--listen", f"127.0.0.1:{port}")
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)

    def healthy() -> bool:
        connection.request("GET", "/heartbeat")
        answer: dict[str, object] = json.loads(connection.getresponse().read())
        return answer["status"] == "healthy" and answer["gpus"] == {"expected": 8, "present": 8}

    def ready() -> bool:
        with suppress(BlockingIOError):
            return b"READY=1" in manager.recv(4096).split()
        return False

    variables = {**os.environ, "NOTIFY_SOCKET": str(host.folder / "notify")}
    started = time.perf_counter()
    with manager, subprocess.Popen(command, stderr=subprocess.DEVNULL, env=variables) as process:
        try:
            took.setdefault(f"run: exec to listening, {how}", []).append(until(lambda: listens(port), started))
            took.setdefault(f"run: exec to healthy heartbeat, {how}", []).append(until(healthy, started))
            took.setdefault(f"run: exec to READY, {how}", []).append(until(ready, started))
            connection.close()
            (host.folder / "notify").unlink()
            stopping = time.perf_counter()
            process.send_signal(signal.SIGTERM)
            wait_for_end(process)
            took.setdefault("run: SIGTERM to exit", []).append((time.perf_counter() - stopping) * 1e3)
        finally:
            process.kill()


def call(*command: str | Path) -> float:
    """Return the milliseconds of a whole process."""
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for_end(process)
            return (time.perf_counter() - started) * 1e3
        finally:
            process.kill()


def short_commands(host: FakeHost) -> dict[str, list[float]]:
    commands: dict[str, tuple[str | Path, ...]] = {
        "python -c pass": (sys.executable, "-c", "pass"),
        "gpuwarden status": (COMMAND, "status", "--run-dir", host.run_dir),
        "gpuwarden status --json": (COMMAND, "status", "--json", "--run-dir", host.run_dir),
        "gpuwarden --help": (COMMAND, "--help"),
        "gpuwarden fleet --help": (COMMAND, "fleet", "--help"),
        "gpuwarden config --help": (COMMAND, "config", "--help"),
        "gpuwarden check": (COMMAND, "check", "--config", host.config),
    }
    took: dict[str, list[float]] = {name: [] for name in commands}
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        for command in commands.values():  # warm the page cache
            call(*command)
        for _ in range(RUNS):
            for name, command in commands.items():
                took[name].append(call(*command))
    return took


def main() -> None:
    required = {"gpuwarden status": "<= 100 ms", "run: exec to healthy heartbeat, first start": "<= 1000 ms"}
    goals = {"run: exec to healthy heartbeat, first start": "<= 500 ms"}
    with fake_host() as host:
        took = short_commands(host)
    for _ in range(RUNS):
        with fake_host() as host:
            start(host, took, "first start")
            start(host, took, "with its ledger")
            forget(
                *{
                    Path(module.__file__).parent
                    for module in (gpuwarden, gpuwarden_collectors, aiohttp, os)
                    if module.__file__
                }
            )
            start(host, took, "cold")
    base = statistics.median(took["python -c pass"])
    rows = [
        [
            name,
            spread(values, 0),
            f"{statistics.median(values) / base:.1f}",
            required.get(name, ""),
            goals.get(name, ""),
        ]
        for name, values in took.items()
    ]
    head = ("what", "ms", "ratio to python -c pass", "required", "goal")
    table(f"Whole processes, 8 GPUs: median (least-most) of {RUNS} runs", head, rows)


if __name__ == "__main__":
    main()
