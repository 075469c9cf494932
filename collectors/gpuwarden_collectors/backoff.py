"""Exponential backoff, for retries and for polls that may become slower."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

_EXPONENT_MOST = 64  # with any factor of 1.5 or more `most` is reached long before, and a float could overflow beyond


def grown(first: float, most: float, failures: int, factor: float = 2.0) -> float:
    """The pause after one more failure than `failures` in a row: `first` * `factor` ** `failures`, at most `most`.

    `factor` is at least 1.5. Pure.
    """
    return min(most, first * factor ** min(failures, _EXPONENT_MOST))


class Backoff:
    """Pauses between attempts, growing from `first` to `most` seconds. A change of either applies to the next pause.

    `chance` multiplies each pause by a random factor within `spread`, so that a fleet does not retry in step. None: no
    jitter.
    """

    def __init__(
        self,
        first: float,
        most: float,
        *,
        factor: float = 2.0,
        spread: tuple[float, float] = (1.0, 1.0),
        chance: Random | None = None,
    ) -> None:
        self.first = first
        self.most = most
        self.failures = 0
        """Failures in a row."""
        self._factor = factor
        self._spread = spread
        self._chance = chance

    def failed(self) -> float:
        """Counts one more failure and returns the seconds to pause before the next attempt."""
        seconds = grown(self.first, self.most, self.failures, self._factor)
        self.failures += 1
        return seconds if self._chance is None else seconds * self._chance.uniform(*self._spread)

    def succeeded(self) -> None:
        """Resets the next pause to the first one."""
        self.failures = 0
