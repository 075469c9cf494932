"""What the log says of events: one line for each, and of a storm one a minute; the ledger and the metrics count them all."""

from __future__ import annotations

from collections.abc import Iterable

from gpuwarden.base.log import get_logger
from gpuwarden.health.conditions import condition
from gpuwarden.health.model import Event, EventKind, Key
from gpuwarden.ledger.rows import Memory

STORMING = (EventKind.XID, EventKind.SXID, EventKind.AER)
LINE_SPACING = 60.0
LEFT_OUT_SHOWN = 20

log = get_logger("gpuwarden")


class EventLines:
    def __init__(self) -> None:
        self._next: dict[Key, float] = {}  # as many as the judge keeps records

    def write(self, events: Iterable[Event]) -> None:
        for event in events:
            if self._worth_a_line(event):
                write_line(event)

    def recalled(self, memory: Memory) -> None:
        """What is worth knowing of how the ledger was opened."""
        if memory.begun:
            changed = (EventKind.MACHINE_CHANGED, EventKind.LEDGER_MOVED)
            self.write(event for event in memory.events if event.kind in changed)
        if memory.left_out:
            shown, count = ", ".join(memory.left_out[:LEFT_OUT_SHOWN]), len(memory.left_out)
            log.warning(
                "left out of the ledger: made of lines that the kernel did not write", events=shown, count=count
            )

    def _worth_a_line(self, event: Event) -> bool:
        if event.kind not in STORMING or event.key is None:
            return True
        due = self._next.get(event.key, 0.0) <= event.at.boottime
        if due:
            self._next[event.key] = event.at.boottime + LINE_SPACING
        return due


LINES: dict[EventKind, tuple[str, str]] = {
    EventKind.STARTED: ("debug", "started"),
    EventKind.BOOT: ("info", "a new boot of this machine"),
    EventKind.RISING: ("debug", "seen, but not for long enough"),
    EventKind.SUBSIDED: ("debug", "no longer seen"),
    EventKind.RAISED: ("warning", "finding"),
    EventKind.CLEARED: ("info", "finding ended"),
    EventKind.LATCHED: ("info", "finding latched: it stays until something is done about it"),
    EventKind.XID: ("warning", "xid"),
    EventKind.SXID: ("warning", "sxid"),
    EventKind.AER: ("warning", "fatal PCIe error"),
    EventKind.RESET: ("info", "GPU reset"),
    EventKind.LOG_GAP: ("warning", "kernel log records were lost"),
    EventKind.ACKNOWLEDGED: ("info", "finding acknowledged"),
    EventKind.HEALTH: ("info", "node health"),
    EventKind.GPU_PINNED: ("info", "GPU belongs here from now on"),
    EventKind.GPU_REPLACED: ("warning", "another GPU in this slot"),
    EventKind.GPU_UNPINNED: ("info", "GPU no longer belongs here"),
    EventKind.HOST_LEARNED: ("info", "is so from now on"),
    EventKind.HOST_FORGOTTEN: ("info", "no longer belongs here"),
    EventKind.INTENDED: ("info", "wanted of a scheduler"),
    EventKind.OUTCOME: ("info", "what came of it"),
    EventKind.EXCLUDED: ("warning", "this node is excluded"),
    EventKind.RESTORED: ("info", "this node is restored"),
    EventKind.HELD: ("info", "an exclusion of ours that stands is taken on"),
    EventKind.LIFTED: ("warning", "somebody else ended an exclusion, or took ours over"),
    EventKind.ORDERED: ("info", "an operator ordered"),
    EventKind.NOTICED: ("warning", "the end of this machine was announced"),
    EventKind.NOTICE_ENDED: ("info", "the end of this machine was called off"),
    EventKind.DEPARTING: ("warning", "what runs here is told to save, and to start elsewhere"),
    EventKind.SIGNALLING: ("info", "a job is being told"),
    EventKind.SIGNALLED: ("info", "a job was told"),
    EventKind.SAVED: ("info", "a job, or a rank of it, is done"),
    EventKind.REQUEUED: ("info", "a job was requeued"),
    EventKind.NOT_REQUEUED: ("warning", "a job is not requeued"),
    EventKind.LAST_WORDS: ("warning", "last words to the scheduler"),
    EventKind.APPROVING: ("warning", "the announced end is being approved: this machine goes at once"),
    EventKind.APPROVED: ("warning", "what came of approving the announced end"),
    EventKind.DEPARTED: ("info", "what runs here is told no more"),
    EventKind.NEEDS_PERSON: ("warning", "once this node is excluded for this, a person must restore it"),
    EventKind.MACHINE_CHANGED: ("warning", "the ledger is another machine's: set aside, begun anew"),
    EventKind.LEDGER_MOVED: ("error", "the ledger was corrupt: moved aside, begun anew"),
    EventKind.LEDGER_LOST: ("error", "the ledger lost its last events"),
}
"""What a log line says of an event, and how loud."""
HIDDEN = ("first_boottime", "first_wall", "latch", "links", "signs", "sequence", "bursts", "processes")


def write_line(event: Event) -> None:
    """One line for each event; a pass that changes nothing has none."""
    level, text = LINES[EventKind(event.kind)]
    if event.data.get("severity") == "failure" or event.data.get("to") == "failure":
        level = "error"
    if event.kind == EventKind.SIGNALLING and event.data.get("way") == "none":
        text = "a job is not told"
    about: dict[str, object] = {} if event.key is None else {"id": str(event.key)}
    if event.kind == EventKind.RAISED and event.key is not None:
        row = condition(event.key.code)
        about["title"] = row.title if row else event.key.code
    details = {name: value for name, value in event.data.items() if name not in HIDDEN}
    getattr(log, level)(text, **about, **details)
