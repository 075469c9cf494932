"""How often something may be done: the one implementation for requests, events and announcements."""

from __future__ import annotations


class TokenBucket:
    """Allows `burst` at once, and one more each `interval` seconds; 0: always. `now` is any clock in seconds that only goes forward."""

    def __init__(self, burst: int, interval: float, now: float) -> None:
        self._burst = self._left = float(burst)
        self._interval = interval
        self._filled = now

    def wait(self, now: float) -> float:
        """Takes one and returns 0, or takes none and returns the seconds until there is one."""
        if not self._interval:
            return 0.0
        self._left = min(self._burst, self._left + (now - self._filled) / self._interval)
        self._filled = now
        if self._left < 1.0:
            return (1.0 - self._left) * self._interval
        self._left -= 1.0
        return 0.0
