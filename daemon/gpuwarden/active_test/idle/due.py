"""Whether the GPUs of this node are due for a test, by the results that the daemon has. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from gpuwarden.base.durations import format_duration
from gpuwarden.health.active_test.outcome import ActiveVerdict
from gpuwarden_collectors.active_test.facts import Level

UNJUDGED = 8
"""A test without a verdict, as one that was preempted or cannot run here, counts for this part of the time between two."""
_LEVELS = tuple(Level)


def not_due(
    status: Mapping[str, Any], level: Level, every: float, now: float, slots: frozenset[str] = frozenset()
) -> str:
    """Why no test is due; empty if one is. `status`: the daemon's. `slots`: of these GPUs; empty: of all. `now`: Unix time.

    Raises KeyError, TypeError, AttributeError or ValueError if the status is of another version.
    """
    gpus = [gpu for gpu in status["gpus"] if gpu["present"] and (not slots or gpu["pci_bus_id"] in slots)]
    if not gpus:
        return "the daemon sees no GPU to test: see gpuwarden status"
    newest = {gpu["uuid"]: max(_counting(status, gpu["uuid"], level, every, now), default=None) for gpu in gpus}
    times = [at for at in newest.values() if at is not None]
    if len(times) < len(newest):
        return ""
    ago = max(0.0, now - min(times))
    return f"its GPUs were tested {format_duration(round(ago))} ago at level {level.value} or higher; test.every is {format_duration(every)}"


def _counting(status: Mapping[str, Any], uuid: str, level: Level, every: float, now: float) -> Iterator[float]:
    """When this GPU's tests that still count were."""
    for result in status["tests"]["results"]:
        if result["uuid"] != uuid or _LEVELS.index(Level(result["level"])) < _LEVELS.index(level):
            continue
        at = datetime.fromisoformat(result["at"]).timestamp()
        lasts = every / UNJUDGED if result["result"] == ActiveVerdict.NO_VERDICT.value else every
        if -every < now - at < lasts:  # a clock that was set back forgets no test for longer than this
            yield at
