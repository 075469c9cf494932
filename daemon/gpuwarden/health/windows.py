"""Growth of a counter within a window, robust against resets, gaps and repeated readings.

A series keeps a sample only if the counter grew: at most `KEPT`, at least `SPACING` seconds apart, so that memory is
bounded at any pass interval. A counter that decreases was reset: it then counts from zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

SPACING = 15.0
KEPT = 250  # with SPACING, a little more than one hour
Samples = tuple[tuple[float, int], ...]


class Series(NamedTuple):
    """Readings of one counter. `samples`: (boottime, growth since the first reading), spaced. `grown`, `last`: current.

    `began`, `at`: times of the first and the newest reading. A tuple, since every pass creates one for every counter of
    every GPU, and a frozen dataclass takes three times as long.
    """

    samples: Samples
    last: int
    grown: int
    at: float
    began: float

    @classmethod
    def start(cls, at: float, value: int) -> Series:
        return cls(((at, 0),), value, 0, at, at)

    def add(self, at: float, value: int, kept: int = KEPT) -> Series:
        """Return the series with one more reading. `kept`: most samples, if fewer than `KEPT` suffice."""
        grown = self.grown + (value - self.last if value >= self.last else value)
        samples = self.samples
        newest = samples[-1]
        if grown != newest[1] and at - newest[0] >= SPACING:
            samples = (*samples[-kept + 1 :], (at, grown))
        return Series(samples, value, grown, at, self.began)

    @property
    def followed(self) -> float:
        """Seconds for which the counter has been read."""
        return self.at - self.began

    def growth(self, window: float) -> tuple[int, float]:
        """Return the growth over the last `window` seconds, and the seconds actually measured (0 with one reading)."""
        seconds = min(window, self.at - self.began)
        if self.grown == self.samples[0][1]:
            return 0, seconds
        return self.grown - self._before(self.at - window), seconds

    def _before(self, at: float) -> int:
        """Return the growth of the counter by `at`, as far back as samples go."""
        low, high = 0, len(self.samples)
        while high - low > 1:
            middle = (low + high) // 2
            if self.samples[middle][0] <= at:
                low = middle
            else:
                high = middle
        return self.samples[low][1]


Windows = Mapping[tuple[str, str], Series]
"""By (slot, name of the reading)."""


def added(windows: Windows, readings: Iterable[tuple[tuple[str, str], float, int]]) -> Windows:
    """Return the windows with the new readings; the same object if there are none. `kept` drops series of lost GPUs.

    `readings`: key, time and value of each. A reading that was already added is skipped.
    """
    new: dict[tuple[str, str], Series] = {}
    for key, at, value in readings:
        series = windows.get(key)
        if series is None:
            new[key] = Series.start(at, value)
        elif at > series.at:
            new[key] = series.add(at, value)
    return {**windows, **new} if new else windows


def kept(windows: Windows, slots: frozenset[str]) -> Windows:
    window_slots = {slot for slot, _ in windows}
    return windows if window_slots <= slots else {k: v for k, v in windows.items() if k[0] in slots}
