"""The processes of one Slurm as a folder like /proc. Machines of a test share a host with whatever else is tested on it, and a daemon
that acts signals all jobs and containers that it sees.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

EVERY = 0.05
BECOMES = 2.0
"""Seconds in which a process may yet become another program, with another environment."""


class SlurmProcesses:
    """`folder` has those whose environment names `conf`, and their children."""

    def __init__(self, folder: Path, conf: Path) -> None:
        self.folder = folder
        self._named = f"SLURM_CONF={conf}".encode()
        self._first: dict[int, float] = {}
        self._members: set[int] = set()
        folder.mkdir(exist_ok=True)
        with contextlib.suppress(FileExistsError):
            (folder / "sys").symlink_to("/proc/sys")

    def read(self) -> None:
        now, here = time.monotonic(), {int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()}
        for pid in self._first.keys() - here:
            del self._first[pid]
            if pid in self._members:
                self._members.discard(pid)
                (self.folder / str(pid)).unlink(missing_ok=True)
        for pid in sorted(here - self._members):
            if now - self._first.setdefault(pid, now) <= BECOMES and self._is_member(pid):
                self._members.add(pid)
                with contextlib.suppress(FileExistsError):
                    (self.folder / str(pid)).symlink_to(f"/proc/{pid}")

    def _is_member(self, pid: int) -> bool:
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            return False
        return self._named in variables or parent in self._members

    @contextmanager
    def followed(self) -> Iterator[None]:
        """The folder is kept as it should be."""
        ended = threading.Event()

        def follow() -> None:
            while not ended.wait(EVERY):
                self.read()

        thread = threading.Thread(target=follow)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
