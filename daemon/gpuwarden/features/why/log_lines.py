"""The log lines of events of jobs. The end of a job is logged at level info if something or somebody ended it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpuwarden.features.why.model import Cause
from gpuwarden.health.model import Event, EventKind

Line = tuple[str, str]


def _ended(event: Event) -> Line:
    return "debug" if event.data.get("cause") == Cause.NONE else "info", "job ended"


LINES: Mapping[EventKind, Line | Callable[[Event], Line]] = {
    EventKind.JOB_BEGUN: ("debug", "job has GPUs"),
    EventKind.JOB_USED: ("debug", "job uses GPUs"),
    EventKind.JOB_ENDED: _ended,
}
