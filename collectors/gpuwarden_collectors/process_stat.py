"""Parses /proc/PID/stat (proc(5)). Reading this file never blocks."""

from __future__ import annotations

import os
from pathlib import Path

from gpuwarden_collectors.base import CollectorError, SourceAbsent
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.host_files import read_bytes


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """One line of /proc/PID/stat, of a process or a thread.

    `started` is in ticks since boot; with the PID it uniquely identifies the process. `state` is R, S, D, T, t, Z, X …
    `addresses` are those of its data and heap: exec changes them, setproctitle does not.
    """

    pid: int
    name: bytes
    state: str
    parent: int
    session: int
    flags: int
    threads: int
    started: int
    addresses: tuple[bytes, ...]

    @property
    def over(self) -> bool:
        """True if the process has ended.

        If only its first thread has exited, the state is that of a zombie, but the process still runs.
        """
        return self.state in "XxZ" and self.threads <= 1


def parse_stat(line: bytes) -> ProcessStat:
    """Parses the line. Raises ValueError for another form."""
    head, _, tail = line.rpartition(b") ")  # the name may contain anything, even parentheses and newlines
    pid, _, name = head.partition(b" (")
    fields = tail.split()
    if len(fields) < 20:
        raise ValueError("a line of another form in stat")
    return ProcessStat(
        pid=int(pid),
        name=name,
        state=fields[0].decode("ascii", "replace"),
        parent=int(fields[1]),
        session=int(fields[3]),
        flags=int(fields[6]),
        threads=int(fields[17]),
        started=int(fields[19]),
        addresses=tuple(fields[42:45]),
    )


def read_stat(folder: str) -> ProcessStat | None:
    """Reads the process or thread of this folder; returns None as `process_stat` does."""
    try:
        return parse_stat(read_bytes(f"{folder}/stat"))
    except (OSError, ValueError):
        return None


def process_stat(proc: Path | str, pid: int) -> ProcessStat | None:
    """Reads a process; returns None if it is gone, hidden from this user, or its line has another form."""
    return read_stat(f"{os.fspath(proc)}/{pid}")


def process_ids(proc: str, most: int) -> list[int]:
    """Lists all PIDs. Raises SourceAbsent without /proc, CollectorError if unreadable or longer than `most`."""
    try:
        pids = [int(name) for name in os.listdir(proc) if name.isdecimal()]  # noqa: PTH208 - a Path for each process
    except FileNotFoundError as error:
        raise SourceAbsent(f"no processes: {proc} does not exist") from error
    except OSError as error:
        raise CollectorError(f"cannot list processes in {proc}: {error.strerror}") from error
    if len(pids) > most:
        raise CollectorError(f"cannot scan processes: {proc} lists more than {most}")
    return pids


def is_there(pid: int) -> bool:
    """True if a process with this PID exists, even if it is hidden (hidepid) or another user's."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
