"""Reads the black box: traces in a folder that the daemon's user can write. Root reads it without following links."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from gpuwarden_collectors.dataclass import dataclass

FOLDER = "black-box"
"""Name of the folder in the state directory."""
_FROZEN, _RING, _END = "frozen-", "ring-", ".trace.gz"
_FILES_MOST = 512
"""Most files of the folder that are considered."""


class NoBox(Exception):  # noqa: N818 - a state of the host
    """There is no black box. The message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxFile:
    """One trace."""

    name: str
    """Its name in the folder."""
    written: float
    """When it was last written, wall time."""
    content: bytes
    """The whole file."""


def traces(state_dir: Path, most: int) -> tuple[list[BoxFile], list[str]]:
    """Return the newest traces, oldest first, of at most `most` bytes together, and the names of those that are left
    out.

    Frozen traces take precedence over those of the ring, which are still being written. Raises NoBox.
    """
    try:
        folder = os.open(state_dir / FOLDER, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise NoBox(f"{state_dir / FOLDER} cannot be read: {error.strerror}") from None
    try:
        entries = sorted(_found(folder), reverse=True)
        if not entries:
            raise NoBox(f"{state_dir / FOLDER} has no traces")
        taken, left_out, room = [], [], most
        for _, written, name, size in entries:
            if size > room:
                left_out.append(name)
                continue
            content = _read(folder, name, room)
            if content:
                room -= len(content)
                taken.append(BoxFile(name=name, written=written, content=content))
    finally:
        os.close(folder)
    return sorted(taken, key=lambda file: file.written), left_out


def _found(folder: int) -> Iterator[tuple[bool, float, str, int]]:
    """Yield for each trace whether it is frozen, when it was written, its name and size."""
    names = sorted(os.listdir(folder))[:_FILES_MOST]
    for name in names:
        if name.startswith((_FROZEN, _RING)) and name.endswith(_END) and name.isprintable():
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
                yield name.startswith(_FROZEN), status.st_mtime, name, status.st_size


def _read(folder: int, name: str, most: int) -> bytes:
    """Return the content of a regular file; nothing if it was replaced or removed meanwhile."""
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return b""
    with os.fdopen(file, "rb") as opened:
        status = os.fstat(file)
        return opened.read(most) if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 else b""
