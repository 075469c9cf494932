"""Schedules when a row of the table of readings is read for one GPU: in the first pass, then spread over its cadence.

Rows of one cadence are spread over it in proportion to their prices, and each GPU starts at another phase. Therefore
neither the expensive rows of a GPU nor the same row of several GPUs fall into one pass, and all later passes take
about the same time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from gpuwarden_collectors.nvml.readings import Cadence, Call, Field

_GOLDEN = (math.sqrt(5) - 1) / 2
_TURNS = Cadence.HOUR
"""Seconds before a daily row expires at which it starts to wait for its turn; each pass has a turn for one GPU."""


def period(cadence: Cadence, interval: float) -> float:
    """Seconds between two readings so that no value outlives its cadence, with a pass every `interval` seconds."""
    early = _TURNS if cadence is Cadence.DAY else interval
    return max(cadence - early, 0.0)


def phase_of_gpu(index: int) -> float:
    """Returns the phase of this GPU within a cadence, from 0 to 1. Any number of GPUs is spread evenly."""
    return index * _GOLDEN % 1.0


def phases(rows: Sequence[Call | Field], first: float) -> list[float]:
    """Returns the phase of each row in its cadence, from 0 to 1. `first` is that of each cadence's first row."""
    result = dict.fromkeys(range(len(rows)), first)
    for cadence in Cadence:
        numbers = [number for number, row in enumerate(rows) if row.cadence is cadence]
        prices = [rows[number].price for number in numbers]
        for number, before in zip(numbers, accumulate(prices, initial=0.0), strict=False):
            result[number] = (first + before / (sum(prices) or 1.0)) % 1.0
    return list(result.values())


class Due:
    """The schedule of one reading.

    `phase`, from 0 to 1, is the position of the second reading in its period. `read_at` is the time of the last
    reading, or None; `next` is when the next one is due.
    """

    __slots__ = ("_period", "_phase", "next", "read_at")

    def __init__(self, period: float, phase: float) -> None:
        self._period = period
        self._phase = phase
        self.next = -math.inf
        self.read_at: float | None = None

    def __call__(self, now: float) -> bool:
        return now >= self.next

    def read(self, now: float) -> None:
        """Records a reading at `now`. An early reading does not change the schedule."""
        self.read_at = now
        if self.next == -math.inf:
            self.next = now + self._period * (self._phase or 1.0)
        elif self._period and now >= self.next:
            self.next += self._period * (1 + (now - self.next) // self._period)

    def at_once(self) -> None:
        self.next = -math.inf

    def put_off(self, until: float) -> None:
        self.next = until
