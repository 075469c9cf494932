"""What a daemon would have published, and the small processes that answer others with it, started as systemd starts them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.commands import COMMAND, environment
from support.daemons import PATIENCE

BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
_HAND_OVER = """
import os, sys
os.dup2(int(sys.argv[1]), 3, inheritable=True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
os.execv(sys.argv[2], sys.argv[2:])
"""


def verdict(run_dir: Path, state: str = "healthy", *, mode: str = "enforce", age: float = 0.0, **more: object) -> None:
    """Replaced at once, as the daemon does."""
    stamp = int(time.clock_gettime(time.CLOCK_BOOTTIME) - age)
    fields = {
        "format": 1, "boot_id": BOOT, "stamp": stamp, "fresh_for": 1000, "mode": mode, "simulated": 0, "state": state,
        "schedulable": 1, "excluded": 0, "breaker": 0, "reason": "", "node_state": "healthy", "excluded_by": "", **more,
    }  # fmt: skip
    run_dir.mkdir(exist_ok=True)
    new = run_dir / ".verdict.new"
    new.write_text("".join(f"{key}={value}\n" for key, value in fields.items()))
    new.replace(run_dir / "verdict")


def marker(run_dir: Path, name: str, cause: str = "failure", reason: str = "gpuwarden: failure gpu=3 xid=79") -> Path:
    document = {
        "format": 1, "node": "n1", "actuator": name, "cause": cause, "reason": reason, "check": "xid",
        "since": "2026-03-01T12:00:00.000Z", "boot_id": BOOT, "owner": "gpuwarden",
    }  # fmt: skip
    path = run_dir / "excluded" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document) + "\n")
    return path


def waited(condition: Callable[[], object], awaited: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"waited {PATIENCE:g} s in vain for {awaited}"
        time.sleep(0.02)


@dataclass
class Activated:
    """A listening socket that outlives the process that answers on it."""

    listener: socket.socket
    words: tuple[str, ...]
    folder: Path
    more: Mapping[str, str]
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> subprocess.Popen[bytes]:
        number = self.listener.fileno()
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _HAND_OVER, str(number), *COMMAND, *self.words],
                env=environment(self.folder, self.more), stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(number,),
            )  # fmt: skip
        return self.process

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    def log(self) -> str:
        return (self.folder / "log").read_text()


@contextmanager
def activated(listener: socket.socket, *words: str | Path, folder: Path, **more: str) -> Iterator[Activated]:
    """Run a service on this listener. It has no GPUWARDEN_* variables except those that are named."""
    service = Activated(listener, tuple(map(str, words)), folder, more)
    try:
        service.start()
        yield service
    finally:
        if service.process is not None:
            with contextlib.suppress(ProcessLookupError):
                service.process.kill()
            service.process.wait()
        listener.close()


def tcp() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0), backlog=1024)


def unix(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.fspath(path))
    listener.listen(1024)
    return listener


def memory(pid: int) -> dict[str, int]:
    """Memory of a process in KiB, by its name in smaps_rollup(5)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
