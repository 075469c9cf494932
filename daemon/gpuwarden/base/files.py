"""Reads regular files, replaces files atomically, syncs folders, and holds lock files."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

_LOCKED_AGAIN = 0.05
"""Seconds between two attempts to get a lock."""


def read_regular(path: Path, most: int, *, follow: bool = True) -> bytes:
    """Return the first `most` bytes of a regular file, without waiting for the writer of a pipe. Raises OSError, also
    for any other kind of file.

    `follow`: the path may be a symbolic link.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    try:
        with os.fdopen(descriptor, "rb", closefd=False) as opened:  # which raises for a folder, and would not close it
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, "not a regular file", str(path))
            return opened.read(most)
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: str | bytes, *, mode: int, synced: bool = False) -> None:
    """Replace `path` atomically: readers see the complete old or new content.

    Writes a new file next to `path` and first removes an existing one there, which another user could still write to.
    `synced`: the content is on disk when this returns. Raises OSError; the old content then remains, unless only the
    folder could not be synced.
    """
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)  # independent of the umask
            file.write(content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace"))
            if synced:
                file.flush()
                os.fsync(descriptor)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if synced:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Sync the entries of the folder to disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def lock(path: Path, within: float = 0.0) -> Iterator[int | None]:
    """Create the file if it is missing, and hold its lock until the end of the block. If this process is killed in
    it, processes that inherited the file keep the lock.

    Yields the open file; None if another process still holds the lock after `within` seconds. Raises OSError.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        yield file if _locked(file, within) else None
    finally:
        os.close(file)


def _locked(file: int, within: float) -> bool:
    end = time.monotonic() + within
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
            time.sleep(_LOCKED_AGAIN)
        else:
            return True
