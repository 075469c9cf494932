"""Levels of `gpuwarden test`, and their durations. Separate from `facts.py`, which the daemon loads on first use."""

from __future__ import annotations

from enum import StrEnum


class Level(StrEnum):
    """The extent of a test. Each level includes everything in the previous one."""

    GATE = "gate"
    QUICK = "quick"
    STANDARD = "standard"


def higher(level: Level, other: Level) -> Level:
    """Return the level that tests more."""
    return max(level, other, key=tuple(Level).index)


WITHIN = {Level.GATE: 60.0, Level.QUICK: 90.0, Level.STANDARD: 240.0}
"""Time limit of a worker in seconds, without the time it waits for answers. On one H100 gate took about 2 s, quick 6 s,
standard 53 s; initialising a driver without persistence mode adds several seconds per GPU."""
APART = 0.5
"""Seconds between the starts of two workers: eight GPUs that start together raise the load by 5.6 kW at once."""
READ_WITHIN = 120.0
"""Most seconds that a run takes in addition to its workers."""


def rounds(level: Level, gpus: int, parallel: int, repeats: int = 0) -> float:
    """Most seconds until the last worker of a run has exited or was killed.

    `parallel` GPUs are tested at once, each of them 1 + `repeats` times.
    """
    return READ_WITHIN + gpus * APART + -(-gpus // parallel) * (1 + repeats) * WITHIN[level]
