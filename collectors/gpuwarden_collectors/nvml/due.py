"""When a row of the table is to be read of one GPU: at first with all others, then in a pass of its own choice.

The passes behind the first are alike: rows of one cadence are spread over it by their prices, and each GPU begins at
another place of it, so that neither the dear rows of a GPU nor the same row of several GPUs meet in one pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from gpuwarden_collectors.nvml.readings import Cadence, Call, Field

_GOLDEN = (math.sqrt(5) - 1) / 2
_TURNS = Cadence.HOUR
"""So long before its day is over a row of that cadence begins to wait for its turn, which one GPU has in a pass."""


def period(cadence: Cadence, interval: float) -> float:
    """Seconds between two readings with which no value grows older than its cadence, with a pass each `interval` seconds."""
    early = _TURNS if cadence is Cadence.DAY else interval
    return max(cadence - early, 0.0)


def phase_of_gpu(index: int) -> float:
    """Returns where in a cadence this GPU begins, from 0 to 1. The GPUs are spread evenly, whatever their number."""
    return index * _GOLDEN % 1.0


def phases(rows: Sequence[Call | Field], first: float) -> list[float]:
    """Returns the phase of each row within its cadence, from 0 to 1; the first of each cadence is at `first`."""
    result = dict.fromkeys(range(len(rows)), first)
    for cadence in Cadence:
        numbers = [number for number, row in enumerate(rows) if row.cadence is cadence]
        prices = [rows[number].price for number in numbers]
        for number, before in zip(numbers, accumulate(prices, initial=0.0), strict=False):
            result[number] = (first + before / (sum(prices) or 1.0)) % 1.0
    return list(result.values())


class Due:
    """The schedule of one reading.

    `phase` is 0 to 1, where in its period the second reading falls. `read_at` is when it was last read, None before
    that; `next` is when it is due.
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
        """Records a reading at `now`. A reading out of turn does not change the schedule."""
        self.read_at = now
        if self.next == -math.inf:
            self.next = now + self._period * (self._phase or 1.0)
        elif self._period and now >= self.next:
            self.next += self._period * (1 + (now - self.next) // self._period)

    def at_once(self) -> None:
        self.next = -math.inf

    def put_off(self, until: float) -> None:
        self.next = until
