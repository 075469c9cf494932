"""The log lines of events of active tests and of the return gate."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpuwarden.health.model import Event, EventKind

Line = tuple[str, str]


def _gate_ended(event: Event) -> Line:
    match event.data.get("result"):
        case "void":
            return "warning", "return gate is void: the node returns without a test"
        case "failed" | "no_verdict":
            return "warning", "return gate: test ended"
    return "info", "return gate: test ended"


LINES: Mapping[EventKind, Line | Callable[[Event], Line]] = {
    EventKind.TEST_BEGUN: ("info", "active test runs"),
    EventKind.TEST_ENDED: ("info", "active test ended"),
    EventKind.TEST_XID: ("warning", "Xid of the active test's own process, set aside"),
    EventKind.TESTED: ("info", "GPU tested"),
    EventKind.GATE_ABLE: ("info", "return gate: this host can test its GPUs"),
    EventKind.GATE_WANTED: ("info", "return gate: a test must pass before the node is restored"),
    EventKind.GATE_BEGUN: ("info", "return gate: test begins"),
    EventKind.GATE_ENDED: _gate_ended,
}
