"""Files of gzip members, one for each flush: a file that was cut anywhere can be read up to its last whole member."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpuwarden.trace.reader import BOOTTIME_MAX, LINE_MAX, WALL_MAX
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

_BLOCK = 64 << 10
_CONTENT_MOST = 2 * LINE_MAX
_OPEN = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The part of a ring file that can be read."""

    size: int
    """Bytes up to the end of the last whole member."""
    boot_id: str
    begun: Stamp
    until: Stamp
    """The time of its last record."""


def member(lines: bytes) -> bytes:
    return gzip.compress(lines, 6, mtime=0)


def write_at(path: Path, offset: int, data: bytes) -> None:
    """Write `data` to disk after the first `offset` bytes of the file. Raises OSError, after cutting it to these."""
    descriptor = os.open(path, _OPEN if offset else _OPEN | os.O_CREAT, 0o600)
    try:
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.pwrite(descriptor, rest, offset + len(data) - len(rest)) :]
            os.fdatasync(descriptor)
        except OSError:
            os.ftruncate(descriptor, offset)
            raise
    finally:
        os.close(descriptor)


def find(path: Path) -> Found | None:
    """Return the part of a ring file that can be read; None if it is not enough to judge. Raises OSError."""
    first, last, size = b"", b"", 0
    for end, content in whole_members(path):
        first, last, size = first or content, content, end
    lines = first.split(b"\n", 2)
    if len(lines) < 3:
        return None
    try:
        began, newest = json.loads(lines[1]), json.loads(last.rstrip(b"\n").rpartition(b"\n")[2])
        begun = Stamp(float(began["at"]), float(began["wall"]))
        spent = float(newest["at"]) - begun.boottime
        if not (
            0.0 <= begun.boottime <= BOOTTIME_MAX and 0.0 <= begun.wall <= WALL_MAX and 0.0 <= spent <= BOOTTIME_MAX
        ):
            return None
        return Found(
            size=size, boot_id=str(began["began"]), begun=begun, until=Stamp(begun.boottime + spent, begun.wall + spent)
        )
    except (ValueError, KeyError, TypeError):
        return None


def first_line(path: Path) -> Any:
    """Parse the first line. Raises OSError, and ValueError if there is none."""
    for _, content in whole_members(path):
        return json.loads(content.partition(b"\n")[0])
    raise ValueError("it has no complete record")


def whole_members(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the content of each member before the first incomplete one, with the offset of its end. Raises OSError."""
    with path.open("rb") as file:
        rest, end = b"", 0
        while True:
            unzip, parts, room = zlib.decompressobj(31), list[bytes](), _CONTENT_MOST
            while not unzip.eof:
                data = rest or file.read(_BLOCK)
                if not data or room <= 0:
                    return
                try:
                    parts.append(unzip.decompress(data, room))
                except zlib.error:
                    return
                room -= len(parts[-1])
                rest = unzip.unused_data if unzip.eof else unzip.unconsumed_tail
                end += len(data) - len(rest)
            yield end, b"".join(parts)
