"""Reads those facts about a process that never block: without its memory lock, and without the driver.

All files are opened through one handle on its folder, which stays valid for this process if its PID is reused.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.host_files import printable
from gpuwarden_collectors.process_stat import ProcessStat, parse_stat
from gpuwarden_collectors.receivers.facts import SIGNALS

_BITS = {name: 1 << (getattr(signal, f"SIG{name}") - 1) for name in SIGNALS}
_ANY = sum(_BITS.values())
_PAGE = 16 << 10  # bytes; allocating more is slow, and most files have 1 KiB
_STATUS_MOST = 16 << 10  # bytes; what is needed comes before the lists of processors and memory nodes


@dataclass(frozen=True, slots=True)
class Process:
    """One process.

    `started` is in ticks since boot. `uid` is the real uid. `catches` has the SIGNALS that it currently handles.
    `program` is an opaque value that changes with each exec.
    """

    pid: int
    parent: int
    started: int
    name: str
    uid: int
    catches: frozenset[str]
    program: tuple[bytes, ...]


@contextmanager
def opened(proc: str, pid: int) -> Iterator[int]:
    """Open the folder of a process in /proc, and close it at the end. Raises OSError if the process is gone."""
    folder = os.open(f"{proc}/{pid}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield folder
    finally:
        os.close(folder)


def read(folder: int | None, name: str, most: int) -> bytes:
    """Reads up to `most` bytes. Raises OSError.

    For all files read here, a short read is the last one.
    """
    file = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        data = os.read(file, min(most, _PAGE))
        full = len(data) == _PAGE
        while full and len(data) < most:
            asked = min(most - len(data), 64 * _PAGE)
            more = os.read(file, asked)
            data, full = data + more, len(more) == asked
        return data
    finally:
        os.close(file)


def stat(folder: int) -> ProcessStat:
    """Reads its line of state. Raises OSError; ValueError for a line of another form."""
    return parse_stat(read(folder, "stat", 4096))


def process(folder: int) -> Process | None:
    """Reads a process; returns None if it has ended. Raises OSError, ValueError."""
    line = stat(folder)
    if line.over:
        return None
    status = read(folder, "status", _STATUS_MOST)
    return Process(
        pid=line.pid,
        parent=line.parent,
        started=line.started,
        name=printable(line.name.decode("utf-8", "replace"), 64),
        uid=int(_field(status, b"\nUid:").split()[0]),
        catches=_caught(int(_field(status, b"\nSigCgt:"), 16) & _ANY),
        program=_program(line),
    )


def _program(line: ProcessStat) -> tuple[bytes, ...]:
    shown = any(address != b"0" for address in line.addresses)  # only visible to root
    return line.addresses if shown else (line.name,)


@lru_cache(maxsize=64)
def _caught(mask: int) -> frozenset[str]:
    return frozenset(name for name, bit in _BITS.items() if mask & bit)


def _field(status: bytes, name: bytes) -> bytes:
    """Returns the rest of that line. Raises ValueError."""
    begin = status.index(name) + len(name)
    return status[begin : status.index(b"\n", begin)]
