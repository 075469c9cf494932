"""A process in D state for real: the parent of a vfork sleeps uninterruptibly until its child is gone.

Run as a program: `python stuck_processes.py main|thread FILE` keeps FILE open, and its first or a second thread gets
stuck. Only SIGKILL ends it.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def stuck_process(where: str, held: Path) -> Iterator[int]:
    """The number of a process whose thread `where` (`main` or `thread`) is in D state, and which has `held` open."""
    process = subprocess.Popen([sys.executable, __file__, where, held], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        while "D" not in states(process.pid):
            assert process.poll() is None
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def states(pid: int) -> list[str]:
    """Return the states of the process's threads, the first one first."""
    tasks = sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda task: int(task.name))
    return [(task / "stat").read_text().rpartition(") ")[2][0] for task in tasks]


def get_stuck() -> None:
    libc = ctypes.PyDLL(None)
    if libc.vfork() == 0:
        libc.prctl(1, 9)  # PR_SET_PDEATHSIG: nothing is left when the parent is killed
        libc.sleep(100)


def main() -> None:
    where, held = sys.argv[1:]
    os.open(held, os.O_RDONLY)
    os.write(1, b"ready\n")
    if where == "thread":
        threading.Thread(target=get_stuck).start()
    else:
        get_stuck()


if __name__ == "__main__":
    main()
