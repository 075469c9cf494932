"""Records the library call in progress in a memory page that a worker shares with the daemon, to identify a hung call.

A reader with several *parts* (NVML: the GPUs) writes each part before it reads it, and each call before it makes it.
That needs no system call; the daemon reads the page only after a missed deadline.
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
    """The recorded activity of a worker. `part` is `NO_PART` outside of parts; `number` its index of `total`."""

    part: str
    number: int
    total: int
    since: float
    """When it started the part; seconds of CLOCK_MONOTONIC. 0.0 until it has loaded its code and may call the library."""
    call: str
    """The function that it called last; empty if none."""

    def __str__(self) -> str:
        return " ".join([*(["from", self.part] if self.part else ()), *(["in", self.call] if self.call else ())])


def call_label(name: str) -> bytes:
    """Encodes a function's name as `Page.call` takes it: 64 bytes, padded with zeros."""
    return name.encode()[:63].ljust(64, b"\0")


class Page:
    """The page of one worker. Without a descriptor it is private."""

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
        """Records the part that the reader now reads."""
        self._page[_CALL] = bytes(64)
        _PART.pack_into(self._page, 0, time.monotonic(), number, total, name.encode()[:32])

    def call(self, label: bytes) -> None:
        """Records that the function of this `call_label` is called next."""
        self._page[_CALL] = label

    def read(self) -> InFlight:
        """Returns what was written last.

        Keeps only printable ASCII, since the worker's library may have overwritten the page.
        """
        since, number, total, name = _PART.unpack_from(self._page)
        return InFlight(_text(name), number, total, since, _text(self._page[_CALL]))

    def close(self) -> None:
        self._page.close()


def _text(raw: bytes) -> str:
    return "".join(chr(byte) for byte in raw.split(b"\0")[0] if 32 <= byte < 127)
