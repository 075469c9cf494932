"""The files of the black box, used by one thread only: the ring that is written, and the boxes that are frozen from it.

    ring-00000042.trace.gz      a segment: a trace by itself, of ten minutes or 1 MiB, each flush a gzip member
    frozen-….trace.gz           a box: a first line of its own, and all segments that there were

Times within a segment are boot time, so that jumps of the wall clock do not matter. The oldest segment is removed once
the later ones hold `HOLD` seconds, or all together are too large.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from gpuwarden.base.files import sync_folder
from gpuwarden.features.black_box.boxes import Box, Failure, header, is_repeated, kept, name_of, superfluous
from gpuwarden.features.black_box.members import find, member, write_at
from gpuwarden.publish.times import rfc3339
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

RING_MOST, SEGMENT_MOST = 8 << 20, 1 << 20
"""Bytes."""
PROMISED = 1800.0
"""Seconds that a box holds, unless it reports what is missing."""
HOLD = 5400.0
"""Seconds that the ring holds, unless they are too large: the judge compares with an hour before, and must reach the
same verdicts for the last half hour."""
SEGMENTS_MOST = 64
"""Most files. Each start of the daemon begins one."""
GAP = 10.0
"""Seconds without a record that count as missing."""
_TEMPORARY = ".new"
_PATTERN = "ring-*.trace.gz"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_COPIED = 256 << 10
_MISSING_MOST = 300  # characters


@dataclass(slots=True, kw_only=True)
class Segment:
    """One file of the ring."""

    path: Path
    number: int
    boot_id: str
    begun: Stamp
    until: Stamp
    """The time of its last record."""
    size: int = 0
    lost: int = 0
    """Records that were lost before this segment."""

    @property
    def seconds(self) -> float:
        return max(0.0, self.until.boottime - self.begun.boottime)


class Ring:
    """The ring and its boxes. All methods but the constructor may raise OSError. `segments` and `boxes` are replaced as
    a whole: other threads may read them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.segments: tuple[Segment, ...] = ()
        self.boxes: tuple[Box, ...] = ()
        self._next = 1
        self._squeezed = False
        self._opened = False

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def seconds(self) -> float:
        return sum(segment.seconds for segment in self.segments)

    def open(self) -> None:
        """Take over the files of an earlier daemon: each segment up to its last whole flush."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._opened:
            return
        for left in self.folder.glob(f".*{_TEMPORARY}"):
            left.unlink()
        paths = sorted(path for path in self.folder.glob(_PATTERN) if _number(path) > 0)
        self.segments = tuple(filter(None, map(_recovered, paths)))
        self._next = 1 + max(map(_number, paths), default=0)
        self.boxes = kept(self.folder)
        self._opened = True

    def begin(self, lines: bytes, boot_id: str, at: Stamp, lost: int) -> None:
        """Begin a segment with these lines."""
        self.open()
        path = self.folder / f"ring-{self._next:08}.trace.gz"
        segment = Segment(path=path, number=self._next, boot_id=boot_id, begun=at, until=at, lost=lost)
        self._next += 1
        self._write(segment, lines)
        sync_folder(self.folder)
        self.segments = (*self.segments, segment)
        self._trim()

    def append(self, lines: bytes, until: Stamp) -> None:
        """Write lines to the newest segment."""
        segment = self.segments[-1]
        if segment.size >= RING_MOST // 2:
            raise OSError(errno.EFBIG, "too many records since the last step")
        self._write(segment, lines)
        segment.until = until
        self._trim()

    def freeze(self, failure: Failure) -> Box | None:
        """Copy the whole ring into a new box; None if it is empty, or a box already shows how this failure began."""
        if not self.segments or is_repeated(failure, self.boxes):
            return None
        path = self.folder / name_of(failure)
        box = Box(path=path, finding=failure.finding, boot_id=failure.boot_id, at=failure.at.boottime)
        while box.size == 0:
            first, last = self.segments[0].begun, self.segments[-1].until
            box = replace(box, begun=first.wall, until=last.wall, missing=self._missing(failure))
            try:
                box = replace(box, size=self._copied(header(failure, box, last.boottime), path))
            except OSError as error:
                self._give_way(error, self.segments[-1])
        boxes = (*(box for box in self.boxes if box.path != path and box.path.exists()), box)
        over = tuple(superfluous(boxes, failure.standing))
        for surplus in over:
            surplus.path.unlink(missing_ok=True)
        self.boxes = tuple(box for box in boxes if box not in over)
        return box

    def _copied(self, first: bytes, path: Path) -> int:
        """Make the box, whole or not at all. Returns its size."""
        temporary = path.with_name(f".{path.name}{_TEMPORARY}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(first)
                for segment in self.segments:
                    file.writelines(_pieces(segment))
                file.flush()
                os.fsync(descriptor)
                size = file.tell()
            temporary.replace(path)
            sync_folder(self.folder)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        return size

    def _missing(self, failure: Failure) -> str:
        """Return which parts of the last 30 minutes are missing, the newest first."""
        last = self.segments[-1]
        end = Segment(path=last.path, number=0, boot_id=failure.boot_id, begun=failure.at, until=failure.at)
        return "; ".join(self._gaps(end))[:_MISSING_MOST]

    def _gaps(self, after: Segment) -> Iterator[str]:
        held = 0.0
        for segment in reversed(self.segments):
            yield from _between(segment, after)
            if (held := held + segment.seconds) >= PROMISED:
                return
            after = segment
        if after.lost:
            yield _lost(after)
        why = "records took too much room" if self._squeezed else "nothing was recorded before"
        yield f"{_time(PROMISED - held)} before {rfc3339(after.begun.wall)} ({why})"

    def _write(self, segment: Segment, lines: bytes) -> None:
        data = member(lines)
        while True:
            try:
                write_at(segment.path, segment.size, data)
            except OSError as error:
                self._give_way(error, segment)
            else:
                segment.size += len(data)
                return

    def _give_way(self, error: OSError, needed: Segment) -> None:
        """Drop the oldest segment if the disk is full and that segment is not needed; otherwise raise the error."""
        if error.errno not in _FULL or not self.segments or self.segments[0] is needed:
            raise error
        self._drop_oldest()
        self._squeezed = True

    def _trim(self) -> None:
        while len(self.segments) > 1:
            too_large = self.size > RING_MOST or len(self.segments) > SEGMENTS_MOST
            if not too_large and self.seconds - self.segments[0].seconds < HOLD:
                return
            self._squeezed = too_large
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        self.segments[0].path.unlink(missing_ok=True)
        self.segments = self.segments[1:]


def _between(before: Segment, after: Segment) -> Iterator[str]:
    """Yield what is missing between two segments."""
    if before.boot_id != after.boot_id:
        yield f"{_time(after.begun.wall - before.until.wall)} from {rfc3339(before.until.wall)} (a boot)"
    elif (gap := after.begun.boottime - before.until.boottime) >= GAP:
        yield f"{_time(gap)} from {rfc3339(before.until.wall)} (nothing was recorded)"
    if after.lost:
        yield _lost(after)


def _lost(segment: Segment) -> str:
    return f"{segment.lost} records before {rfc3339(segment.begun.wall)} (too many, or the disk was too slow)"


def _time(seconds: float) -> str:
    return f"{seconds / 60.0:.0f} min" if seconds >= 120.0 else f"{max(0.0, seconds):.0f} s"


def _number(path: Path) -> int:
    digits = path.name.removeprefix("ring-").removesuffix(".trace.gz")
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) <= 12 else 0


def _recovered(path: Path) -> Segment | None:
    """Return the segment, cut after its last whole flush. None if it has no whole flush, and is removed, or if it
    cannot be read or cut, and stays: later segments do not depend on it.
    """
    try:
        extent = find(path)
        if extent is None:
            path.unlink(missing_ok=True)
            return None
        if extent.size < path.stat().st_size:
            os.truncate(path, extent.size)
    except OSError:
        return None
    return Segment(
        path=path,
        number=_number(path),
        boot_id=extent.boot_id,
        begun=extent.begun,
        until=extent.until,
        size=extent.size,
    )


def _pieces(segment: Segment) -> Iterator[bytes]:
    """Yield the written part of the segment in pieces; nothing if the file was removed."""
    with contextlib.suppress(FileNotFoundError), segment.path.open("rb") as file:
        left = segment.size
        while left > 0 and (piece := file.read(min(left, _COPIED))):
            left -= len(piece)
            yield piece
