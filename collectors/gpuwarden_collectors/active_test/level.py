"""What a daemon knows of tests before there is any: how much one tests. Facts of tests are loaded with the first."""

from __future__ import annotations

from enum import StrEnum


class Level(StrEnum):
    """How much is tested. Each level does all that the one before it does."""

    GATE = "gate"
    QUICK = "quick"
    STANDARD = "standard"


def higher(level: Level, other: Level) -> Level:
    """Return the one that tests more."""
    return max(level, other, key=tuple(Level).index)


WITHIN = {Level.GATE: 60.0, Level.QUICK: 90.0, Level.STANDARD: 240.0}
"""Seconds for a worker, waiting for answers not counted. On one H100 gate took about 2 s, quick 6, standard 53; the first start of a driver
without persistence mode adds several seconds for each GPU."""
APART = 0.5
"""Seconds between the starts of two workers: eight GPUs together step by 5.6 kW."""
READ_WITHIN = 120.0
"""Seconds that a run takes at most beside its workers."""


def rounds(level: Level, gpus: int, parallel: int, repeats: int = 0) -> float:
    """Seconds until the last worker of a run has ended or was killed.

    `parallel` GPUs are tested at once, each of them once and `repeats` times more.
    """
    return READ_WITHIN + gpus * APART + -(-gpus // parallel) * (1 + repeats) * WITHIN[level]
