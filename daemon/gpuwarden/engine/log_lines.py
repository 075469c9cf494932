"""Log lines of events: one for each event; for repeated errors of one subject one a minute, while ledger and metrics
count all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gpuwarden.base.log import get_logger
from gpuwarden.features import parts
from gpuwarden.health.bookkeeping import OF_FINDINGS, OF_GATES, OF_TESTS, is_bookkeeping
from gpuwarden.health.conditions import condition
from gpuwarden.health.model import Event, EventKind, Key
from gpuwarden.health.to_do import of_raised
from gpuwarden.ledger.rows import Memory

STORMING = (EventKind.XID, EventKind.TEST_XID, EventKind.SXID, EventKind.AER, EventKind.KERNEL_LINE, EventKind.OOM_KILL)
LINE_SPACING = 60.0
SPACED_MOST = 4096
"""Most subjects whose last line is remembered. GPUs and links are fewer, but killed jobs and containers are new
subjects every day."""

log = get_logger()


class EventLines:
    """Writes a log line for each event. `shadowed` returns True for events of findings in shadow."""

    def __init__(self, shadowed: Callable[[Event], bool] = lambda _: False) -> None:
        self._shadowed = shadowed
        self._next: dict[Key, float] = {}  # the newest last

    def write(self, events: Iterable[Event]) -> None:
        for event in events:
            if self._worth_a_line(event):
                write_line(event, shadow=self._shadowed(event))

    def recalled(self, memory: Memory) -> None:
        """Log what opening the ledger has changed."""
        if memory.begun:
            changed = (EventKind.MACHINE_CHANGED, EventKind.LEDGER_MOVED)
            self.write(event for event in memory.events if event.kind in changed)

    def _worth_a_line(self, event: Event) -> bool:
        if event.kind not in STORMING or event.key is None:
            return True
        due = self._next.get(event.key, 0.0) <= event.at.boottime
        if due:
            self._next.pop(event.key, None)
            if len(self._next) >= SPACED_MOST:
                del self._next[next(iter(self._next))]
            self._next[event.key] = event.at.boottime + LINE_SPACING
        return due


Line = tuple[str, str]
"""Level and text."""
LINES: dict[EventKind, Line | Callable[[Event], Line]] = {
    EventKind.STARTED: ("debug", "started"),
    EventKind.BOOT: ("info", "new boot"),
    EventKind.RISING: ("debug", "condition rising"),
    EventKind.SUBSIDED: ("debug", "condition subsided before it was raised"),
    EventKind.RAISED: ("warning", "finding raised"),
    EventKind.CLEARED: ("info", "finding cleared"),
    EventKind.LATCHED: ("info", "finding latched: no longer observed; needs reset, reboot or ack"),
    EventKind.XID: ("warning", "Xid"),
    EventKind.SXID: ("warning", "SXid"),
    EventKind.AER: ("warning", "fatal PCIe error"),
    EventKind.KERNEL_LINE: ("warning", "kernel reports"),
    EventKind.OOM_KILL: ("warning", "kernel killed a process: out of memory"),
    EventKind.COUNTED: ("info", "link errors counted"),
    EventKind.RESET: ("info", "GPU reset"),
    EventKind.LOG_GAP: ("warning", "kernel log records lost"),
    EventKind.ACKNOWLEDGED: ("info", "finding acknowledged"),
    EventKind.HEALTH: ("info", "node health changed"),
    EventKind.GPU_PINNED: ("info", "GPU added to the inventory"),
    EventKind.GPU_REPLACED: ("warning", "GPU in this slot replaced"),
    EventKind.GPU_UNPINNED: ("info", "GPU removed from the inventory"),
    EventKind.HOST_LEARNED: ("info", "host baseline learned"),
    EventKind.HOST_FORGOTTEN: ("info", "host baseline forgotten"),
    EventKind.INTENDED: ("info", "action wanted"),
    EventKind.OUTCOME: ("info", "action outcome"),
    EventKind.EXCLUDED: ("warning", "node excluded"),
    EventKind.RESTORED: ("info", "node restored"),
    EventKind.HELD: ("info", "existing exclusion adopted"),
    EventKind.LIFTED: ("warning", "exclusion ended or taken over by another party"),
    EventKind.EXCLUDED_BY_OTHERS: ("info", "node excluded by another party"),
    EventKind.ORDERED: ("info", "operator order"),
    EventKind.NOTICED: ("warning", "termination notice"),
    EventKind.NOTICE_ENDED: ("info", "termination notice withdrawn"),
    EventKind.RELEASED: ("info", "finding released: ends with the next pass that does not observe it"),
    EventKind.NEEDS_PERSON: ("warning", "finding needs a person: the node is not restored automatically"),
    EventKind.MACHINE_CHANGED: ("warning", "ledger is of another machine: moved aside, new one begun"),
    EventKind.LEDGER_MOVED: ("error", "ledger corrupt: moved aside, new one begun"),
    EventKind.LEDGER_LOST: ("error", "ledger lost its last events"),
} | {kind: line for feature in parts("log_lines").values() for kind, line in feature.LINES.items()}
"""The log line of each kind of event, or a function that returns it."""
HIDDEN = (*OF_TESTS, *OF_GATES, *OF_FINDINGS)

SEEN = ("healthy", "warning", "failure")
"""Health of a judged node: only a change from one of these to unknown is logged as a warning."""

_OTHER_NAMES = {"level": "test_level", "id": "try_id"}
"""Other names for event keys that every log line already has: `level` and `id`."""


def write_line(event: Event, *, shadow: bool = False) -> None:
    """Write the log line of one event."""
    line = LINES[EventKind(event.kind)]
    level, text = line(event) if callable(line) else line
    if is_bookkeeping(event.kind, str(event.key), event.data):
        level = "debug"
    if event.kind == EventKind.HEALTH and event.data.get("to") == "unknown" and event.data.get("from") in SEEN:
        level = "warning"
    if event.data.get("severity") == "failure" or event.data.get("to") == "failure":
        level = "error"
    if shadow:
        level, text = "info", f"{text} (shadow: only reported)"
    about: dict[str, object] = {} if event.key is None else {"id": str(event.key)}
    if event.kind == EventKind.RAISED and event.key is not None:
        row = condition(event.key.code)
        about["title"] = row.title if row else event.key.code
        about["to_do"] = of_raised(event.key, event.data)
    hidden = (*HIDDEN, "advice") if "to_do" in about else HIDDEN
    taken = {"level", *about}
    details = {
        _OTHER_NAMES.get(name, f"event_{name}") if name in taken else name: value
        for name, value in event.data.items()
        if name not in hidden
    }
    getattr(log, level)(text, **about, **details)
