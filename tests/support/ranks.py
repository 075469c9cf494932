"""Processes that catch signals, as the ranks of a job do, and report which they got."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

# It becomes the user by itself, for others cannot run this interpreter everywhere; and then lets that user read it
# (prctl(2), PR_SET_DUMPABLE), as a program does which that user started.
SCRIPT = """
import ctypes, os, signal, sys

uid = int(sys.argv[2])
if uid != os.getuid():
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)

def catch(number, _):
    if "swaps" in sys.argv and number != signal.SIGTERM:
        signal.signal(signal.SIGTERM, catch if number == signal.SIGUSR2 else signal.SIG_DFL)
    if "once" in sys.argv:
        signal.signal(number, signal.SIG_DFL)
    os.write(1, f"{signal.Signals(number).name[3:]}\\n".encode())

for name in filter(None, sys.argv[1].split(",")):
    signal.signal(signal.Signals[f"SIG{name}"], catch)
os.write(1, b"ready\\n")
while True:
    signal.pause()
"""
NOBODY = 65534


@dataclass(frozen=True, slots=True)
class Rank:
    process: subprocess.Popen[str]
    pid: int

    @property
    def started(self) -> int:
        return int(Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2].split()[19])

    def received(self) -> str:
        """The next signal that it got. Waits for it."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def received_all(self) -> list[str]:
        """End it, and what it got that was not asked for yet."""
        self.process.kill()
        return self.process.communicate()[0].split()


@contextmanager
def rank(
    caught: str = "TERM", *more: str, uid: int | None = None, prefix: Sequence[str] = (), **options: Any
) -> Iterator[Rank]:
    """A running one, which catches already the signals of that list, with `once` only the first of each kind. With
    `swaps` USR1 takes its handler for TERM away, and USR2 brings it back.

    `prefix`: a program that starts it.
    """
    user = os.getuid() if uid is None else uid
    command = [*prefix, sys.executable, "-I", "-c", SCRIPT, caught, str(user), *more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd="/", **options)
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first == "ready\n"
        inner = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text() or 0) if prefix else 0
        yield Rank(process, inner or process.pid)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@contextmanager
def traced(pid: int) -> Iterator[None]:
    """Trace the process from this thread."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    seize, detach = 0x4206, 17
    if libc.ptrace(seize, pid, None, None) != 0:
        pytest.skip("this host lets nobody trace")
    try:
        yield
    finally:
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED)
        libc.ptrace(detach, pid, None, None)
        os.kill(pid, signal.SIGCONT)
