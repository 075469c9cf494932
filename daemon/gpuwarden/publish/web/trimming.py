"""Returns memory to the system some time after an overload."""

from __future__ import annotations

import asyncio
import ctypes
import gc
from contextlib import suppress

TRIM_AFTER = 30.0
"""Seconds after an overload ends its first connection. Own choice: three times the 10 s in which a client must take its
response, so that nothing of the overload is in use by then.
"""


class Trimming:
    def __init__(self) -> None:
        self._due: asyncio.TimerHandle | None = None

    def later(self) -> None:
        """Schedule a trim in `TRIM_AFTER` seconds, unless one is scheduled already."""
        if self._due is None:
            self._due = asyncio.get_running_loop().call_later(TRIM_AFTER, self._trim)

    def _trim(self) -> None:
        """Collect reference cycles, such as requests and their connections, then the allocator's free memory.

        Python arenas that a pass has used meanwhile remain.
        """
        self._due = None
        gc.collect()
        with suppress(AttributeError):  # a C library without it
            ctypes.CDLL(None).malloc_trim(0)
