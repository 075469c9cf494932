"""A token bucket, for the rates of requests, events and announcements."""

from __future__ import annotations


class TokenBucket:
    """Allows `burst` actions at once and one more every `interval` seconds; 0: no limit. `now`: a monotonic clock."""

    def __init__(self, burst: int, interval: float, now: float) -> None:
        self._burst = self._left = float(burst)
        self._interval = interval
        self._filled = now

    def wait(self, now: float) -> float:
        """Takes a token and returns 0, or takes none and returns the seconds until one is available."""
        if not self._interval:
            return 0.0
        self._left = min(self._burst, self._left + (now - self._filled) / self._interval)
        self._filled = now
        if self._left < 1.0:
            return (1.0 - self._left) * self._interval
        self._left -= 1.0
        return 0.0
