"""The call that a worker is inside, in a page of memory that it shares with the daemon, so that a call that hangs can be named.

A reader that reads several things one after the other, its *parts* (NVML: the GPUs), writes the part before it reads it and each call
before it makes it. That costs no system call; the daemon looks only when a deadline was missed.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from typing import NamedTuple

_PART = struct.Struct("=dHH32s")  # since when (CLOCK_MONOTONIC), number, total, name
_CALL = slice(_PART.size, _PART.size + 64)
NO_PART = ""


class InFlight(NamedTuple):
    """What a worker was doing. `part` is `NO_PART` while it read none; `number` is its place among `total` parts."""

    part: str
    number: int
    total: int
    since: float
    """When it began with the part; seconds of CLOCK_MONOTONIC."""
    call: str
    """The function that it called last; empty if none."""

    def __str__(self) -> str:
        return " ".join([*(["from", self.part] if self.part else ()), *(["in", self.call] if self.call else ())])


def call_label(name: str) -> bytes:
    """Encodes a function's name as `Page.call` takes it: 64 bytes, padded with zeros."""
    return name.encode()[:63].ljust(64, b"\0")


class Page:
    """The page of one worker. Without a descriptor it is shared with nobody."""

    def __init__(self, descriptor: int = -1) -> None:
        """Raises OSError if the descriptor cannot be mapped."""
        self._page = mmap.mmap(descriptor, mmap.PAGESIZE)

    @classmethod
    def shared(cls) -> tuple[Page, int]:
        """Returns a new page, and the descriptor for the process that writes it. Raises OSError."""
        descriptor = os.memfd_create("gpuwarden-call")
        try:
            os.ftruncate(descriptor, mmap.PAGESIZE)
            return cls(descriptor), descriptor
        except OSError:
            os.close(descriptor)
            raise

    def part(self, name: str = NO_PART, number: int = 0, total: int = 0) -> None:
        """Records that the reader now reads this part."""
        self._page[_CALL] = bytes(64)
        _PART.pack_into(self._page, 0, time.monotonic(), number, total, name.encode()[:32])

    def call(self, label: bytes) -> None:
        """Records that the function of this `call_label` is called next."""
        self._page[_CALL] = label

    def read(self) -> InFlight:
        """Returns what was written last.

        It keeps only printable ASCII, since the worker's library may have written anything.
        """
        since, number, total, name = _PART.unpack_from(self._page)
        return InFlight(_text(name), number, total, since, _text(self._page[_CALL]))

    def close(self) -> None:
        self._page.close()


def _text(raw: bytes) -> str:
    return "".join(chr(byte) for byte in raw.split(b"\0")[0] if 32 <= byte < 127)
