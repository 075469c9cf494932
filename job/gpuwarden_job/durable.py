"""Writes files that survive a power failure (write, fsync, rename, fsync of the folder), and opens them safely.

Without fsync of the file the new name may refer to an empty file after a crash; without fsync of the folder the name
may be missing. Only regular files are opened: a writer of the folder could place a pipe or a device there, at which a
restart would hang.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import IO


def opened(path: Path) -> IO[bytes]:
    """Opens a regular file for reading. Raises OSError, also for any other type of file."""
    handle = handle_of(path, os.O_RDONLY)
    return os.fdopen(handle, "rb")


def handle_of(path: Path, flags: int) -> int:
    """Opens a regular file; the caller closes it. Raises OSError."""
    handle = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", os.fspath(path))  # noqa: TRY301 - closed below
    except BaseException:
        os.close(handle)
        raise
    return handle


def flush(path: Path) -> None:
    """Flushes the file or folder to the disk. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some FUSE and network file systems cannot fsync folders: there the manifest shows what is missing.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not path.is_dir():
            raise
    finally:
        os.close(handle)


def flush_folders(folder: Path) -> None:
    """Flushes the folder and all folders below it."""
    for path, _, _ in os.walk(folder):
        flush(Path(path))


def replace(path: Path, content: bytes) -> None:
    """Replaces `path` atomically: readers see the old file or the new one.

    The temporary name is unique.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    flush(path.parent)
