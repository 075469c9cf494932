"""What a service may do, found out by doing it: run by the unit under test's own rules, in a machine. `python3 probe.py RESULT`.

Only the standard library of the machine's Python.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path


def _tried(action: Callable[[], object]) -> str:
    """Return the result as text, or the error's name."""
    try:
        return str(action())
    except OSError as error:
        return type(error).__name__ if error.errno is None else os.strerror(error.errno)


def _kernel_log() -> bytes:
    log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError, BrokenPipeError):
        return os.read(log, 8192)[:1]
    return b""


def _own_socket() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return "listens"


def _write(path: str) -> str:
    Path(path).write_text("x")
    Path(path).unlink()
    return "written"


def _answers() -> Iterator[tuple[str, str]]:
    for path in ("/proc/1/stat", "/proc/1/cgroup", "/proc/meminfo", "/proc/self/mountinfo", "/sys/bus/pci/devices"):
        read = os.listdir if path.startswith("/sys") else lambda path: Path(path).read_bytes()[:1]
        yield path, _tried(lambda path=path, read=read: bool(read(path)))  # type: ignore[misc]
    yield "kernel log", _tried(lambda: bool(_kernel_log()))
    yield (
        "systemctl",
        subprocess.run(
            ["systemctl", "show", "-P", "Id", "dbus"], capture_output=True, text=True, check=False
        ).stdout.strip(),
    )
    yield "network", _tried(_own_socket)
    for mount in ("/home/data", "/home/private/data"):
        yield mount, _tried(lambda mount=mount: os.statvfs(mount).f_blocks > 0)  # type: ignore[misc]
    for file in (
        "/etc/probe",
        "/usr/probe",
        "/home/data/probe",
        "/root/probe",
        "/var/lib/probe",
        "/proc/sys/kernel/hostname",
        "/run/gpuwarden/probe",
        "/var/lib/gpuwarden/probe",
        "/tmp/probe",
        "/var/lib/gpuwarden-slurm/probe",
        "/run/gpuwarden-slurm/probe",
        "/run/gpuwarden-slurm/jobs/probe",
    ):
        yield f"write {file}", _tried(lambda file=file: _write(file))  # type: ignore[misc]
    yield "notes of jobs", _tried(lambda: Path("/run/gpuwarden-slurm/jobs/4711").exists())
    yield "set the host's name", _tried(lambda: socket.sethostname("probe"))
    yield "become another", _become_another()


def _become_another() -> str:
    """Try to change the user in a child, since there is no way back."""
    child = os.fork()
    if child == 0:
        os._exit(_tried(lambda: os.setuid(65534)) != "None")
    return "None" if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 else "refused"


def _capabilities() -> list[int]:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff:"))
    mask = int(line.split()[1], 16)
    return [number for number in range(64) if mask >> number & 1]


if __name__ == "__main__":
    capabilities, user = _capabilities(), os.geteuid()
    Path(sys.argv[1]).write_text(json.dumps({"capabilities": capabilities, "user": user, **dict(_answers())}))
