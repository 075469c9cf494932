"""Records the outcome of a command, even if the daemon is killed before the command ends.

The standard input of the command is a record file, to which it writes `begun` and its exit status. The file is locked
from before the start until the command has exited and the daemon has read the outcome or is dead. The command survives
a killed daemon, because it leads its own session (systemd: KillMode=process).

    file                  the command
    locked                is running, or about to
    none                  unknown: no record could be created, or it was of another boot
    ready                 was not started
    ready, begun 0        succeeded
    anything else         unknown
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from gpuwarden_collectors.slurm.departing_facts import CommandOutcome

KEPT = 86_400.0  # seconds; no reader needs an outcome for that long
_READY = "ready"  # allocates the page, so that the command can write the rest on a full file system
_BEGUN = f"{_READY} begun"
_MOST = 64  # bytes
RECORDED = (
    "/bin/sh",
    "-c",
    'printf " begun" >&0; "$0" "$@" </dev/null; status=$?; printf " $status" >&0; exit $status',
)
"""Prefix of a command that runs it and writes the record on its standard input."""


def of_several(record: int) -> None:
    """Marks the record as unknown, because it covers several commands."""
    os.write(record, b" several commands")


class CommandRecords:
    """The records of commands.

    `folder` belongs to this boot and is writable only by the daemon's user; it is created when needed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextlib.contextmanager
    def begin(self, *purpose: str) -> Iterator[int | None]:
        """Opens a new record before the command starts; yields None if that fails. Raises nothing."""
        file = self._open_new(purpose)
        try:
            yield file
        finally:
            if file is not None:
                os.close(file)

    def _open_new(self, purpose: tuple[str, ...]) -> int | None:
        path = self._path(purpose)
        file = None
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            path.unlink(missing_ok=True)
            self._forget_old()
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(file, _READY.encode())
        except OSError:
            if file is not None:
                os.close(file)
            return None
        return file

    def read(self, *purpose: str) -> CommandOutcome:
        """Returns the outcome of the latest command for this purpose. Raises nothing."""
        try:
            file = os.open(self._path(purpose), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return CommandOutcome.UNKNOWN
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            text = os.pread(file, _MOST, 0).decode("ascii", "replace")
        except BlockingIOError:
            return CommandOutcome.RUNNING
        except OSError:
            return CommandOutcome.UNKNOWN
        finally:
            os.close(file)
        if text == _READY:
            return CommandOutcome.NOT_STARTED
        return CommandOutcome.SUCCEEDED if text == f"{_BEGUN} 0" else CommandOutcome.UNKNOWN

    def _path(self, purpose: tuple[str, ...]) -> Path:
        return self._folder / hashlib.sha256("\0".join(purpose).encode()).hexdigest()[:32]

    def _forget_old(self) -> None:
        """Delete records older than KEPT. Raises OSError if the folder cannot be read."""
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.stat(follow_symlinks=False).st_mtime < time.time() - KEPT:
                    Path(entry.path).unlink(missing_ok=True)
