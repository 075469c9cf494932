"""Measures how long the reading thread spends in the driver: elapsed time without the time it waits for a CPU.

Therefore a busy host or an exhausted CPU quota does not make the driver look slow. Both waiting and computing in the
driver count; Python's share of a pass is some milliseconds.
"""

from __future__ import annotations

import os
import time

_SCHEDULER = "/proc/thread-self/schedstat"
"""schedstat: ns on a CPU, ns waiting for a CPU, number of time slices. Without it, all time counts."""


class ReadingTime:
    """The reading time of one pass, from its start; belongs to one thread.

    It reads schedstat after each part, which takes 5 µs, so that waiting in one part does not count for another.
    """

    def __init__(self) -> None:
        self._begin = self._last = time.monotonic()
        self._waited_before = self._waited = _waited()
        self._parts: dict[int, float] = {}

    def add(self, part: int) -> None:
        """Adds the time since the last call to this part."""
        now = time.monotonic()
        seconds, self._last = now - self._last, now
        before, self._waited = self._waited, _waited()
        seconds -= self._waited - before
        self._parts[part] = self._parts.get(part, 0.0) + max(0.0, seconds)

    def of(self, part: int) -> float:
        """Seconds spent on this part so far."""
        return _rounded(self._parts.get(part, 0.0))

    def total(self) -> float:
        """Seconds since the pass began."""
        return _rounded(time.monotonic() - self._begin - (_waited() - self._waited_before))


def _rounded(seconds: float) -> float:
    """Rounds to 0.1 s: finer times would change in each pass, and each change is sent and recorded."""
    return max(0.0, round(seconds, 1))


def _waited() -> float:
    try:
        descriptor = os.open(_SCHEDULER, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0.0
    try:
        return int(os.read(descriptor, 100).split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
    finally:
        os.close(descriptor)
