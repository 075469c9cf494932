"""Whether a process is still the one that it was: its line in /proc/PID/stat (proc(5)), which never blocks its reader."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from gpuwarden_collectors.host_files import read_bytes


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """`started`: ticks since boot, which with the number names a process for good. `state`: R, S, D, T, t, Z, X …"""

    state: str
    threads: int
    started: int

    @property
    def over(self) -> bool:
        """It has ended. A process whose first thread has ended before the others has the state of a zombie and is none."""
        return self.state in "XxZ" and self.threads <= 1


def process_stat(proc: Path | str, pid: int) -> ProcessStat | None:
    """None for a process that is gone, for one that is hidden from this user, and for a line of another form."""
    try:
        line = read_bytes(f"{os.fspath(proc)}/{pid}/stat")
        fields = line.rpartition(b") ")[2].split()  # the name may hold anything, parentheses too
        return ProcessStat(fields[0].decode("ascii", "replace"), int(fields[17]), int(fields[19]))
    except (OSError, ValueError, IndexError):
        return None


def is_there(pid: int) -> bool:
    """Whether any process has this number, be it hidden from us (hidepid) or another user's."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
