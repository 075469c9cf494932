"""Memory that an overload took is given back some time after it."""

from __future__ import annotations

import asyncio
import ctypes
import gc
from contextlib import suppress

TRIM_AFTER = 30.0
"""Seconds from the first connection that an overload ends. Chosen, not measured: three times the 10 s in which a client must take its response,
so that nothing of the overload is in use by then.
"""


class Trimming:
    def __init__(self) -> None:
        self._due: asyncio.TimerHandle | None = None

    def later(self) -> None:
        """Once, `TRIM_AFTER` from now, unless that is due already."""
        if self._due is None:
            self._due = asyncio.get_running_loop().call_later(TRIM_AFTER, self._trim)

    def _trim(self) -> None:
        """First what only refers to itself, as requests and their connections do; then the pieces that the allocator keeps between what
        is in use. Of Python's own arenas those stay in which a pass has put something meanwhile.
        """
        self._due = None
        gc.collect()
        with suppress(AttributeError):  # a C library without it
            ctypes.CDLL(None).malloc_trim(0)
