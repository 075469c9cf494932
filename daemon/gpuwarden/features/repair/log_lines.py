"""The log lines of events of repairs. They are written to the journal, and so to syslog, before the step is requested."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpuwarden.health.model import Event, EventKind

Line = tuple[str, str]


def _ended(event: Event) -> Line:
    match event.data.get("outcome"):
        case "done" | "rebooted":
            return "warning", "repair: step done"
        case "observed":
            return "info", "repair: mode is observe, the step would be begun"
        case "refused":
            return "warning", "repair: step refused, nothing was done"
    return "error", "repair: step failed"


LINES: Mapping[EventKind, Line | Callable[[Event], Line]] = {
    EventKind.REPAIR_BEGUN: ("warning", "repair: step begins"),
    EventKind.REPAIR_ENDED: _ended,
}
