"""Decides from the daemon's results whether the GPUs of this node are due for a test. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from gpuwarden.base.durations import format_duration
from gpuwarden.features.active_test.judging.outcome import ActiveVerdict
from gpuwarden_collectors.active_test.level import Level

UNJUDGED = 8
"""Divisor of `every` after a test without a verdict, which was preempted or cannot run here."""
_LEVELS = tuple(Level)


def not_due(times: Mapping[str, float | None], level: Level, every: float, now: float) -> str:
    """Return why no test is due; empty if one is. `times`: from `last_tested`. `now`: Unix time."""
    if not times:
        return "the daemon sees no GPU to test: see gpuwarden status"
    test_times = [at for at in times.values() if at is not None]
    if len(test_times) < len(times):
        return ""
    ago = format_duration(round(max(0.0, now - min(test_times))))
    return f"its GPUs were tested {ago} ago at level {level.value} or higher; test.every is {format_duration(every)}"


def last_tested(status: Mapping[str, Any], level: Level, every: float, now: float) -> dict[str, float | None]:
    """Return the time of the last test of each present GPU, by slot: Unix time, or None if a test is due. `status`: the
    daemon's.

    Raises KeyError, TypeError, AttributeError or ValueError if the status is of another version.
    """
    return {
        gpu["pci_bus_id"]: max(_counting(status, gpu["uuid"], level, every, now), default=None)
        for gpu in status["gpus"]
        if gpu["present"]
    }


def _counting(status: Mapping[str, Any], uuid: str, level: Level, every: float, now: float) -> Iterator[float]:
    """Yield the Unix times of this GPU's tests that still count."""
    for result in status["tests"]["results"]:
        if result["uuid"] != uuid or _LEVELS.index(Level(result["level"])) < _LEVELS.index(level):
            continue
        at = datetime.fromisoformat(result["at"]).timestamp()
        lasts = every / UNJUDGED if result["result"] == ActiveVerdict.NO_VERDICT.value else every
        if -every < now - at < lasts:  # ignores a test dated far ahead: the clock was set back
            yield at
