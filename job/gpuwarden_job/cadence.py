"""Decides when periodic saves are due: after a number of steps or of seconds, whichever is first."""

from __future__ import annotations

import time
from collections.abc import Callable

from gpuwarden_job.ranks import Ranks


class Cadence:
    """When periodic saves are due.

    Rank 0's clock decides, and is broadcast every `agree_every` steps, so that all ranks save at the same step.
    """

    def __init__(
        self,
        *,
        steps: int | None = None,
        seconds: float | None = None,
        agree_every: int = 10,
        ranks: Ranks | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if steps is None and seconds is None:
            raise ValueError("neither steps nor seconds are given: nothing would ever be saved")
        self._steps, self._seconds, self._agree_every = steps, seconds, agree_every
        self._ranks = Ranks.detect() if ranks is None else ranks
        self._clock = clock
        self._since = clock()

    def due(self, step: int) -> bool:
        """True if a save is due. Collective where `seconds` is given.

        Call `done` when the save was made or started; a skipped save stays due.
        """
        if self._steps is not None and step > 0 and step % self._steps == 0:
            return True
        if self._seconds is None or step % self._agree_every:
            return False
        return self._ranks.broadcast(int(self._clock() - self._since >= self._seconds)) > 0

    def done(self) -> None:
        self._since = self._clock()
