"""The memory of repairs: recent tries, their outcomes, and the failures that have a bundle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace

from gpuwarden.features.repair.model import Ended, Outcome, Try
from gpuwarden.health.event_data import read, write
from gpuwarden.health.memory import State, board
from gpuwarden.health.model import NODE, Event, EventKind, Key
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

NAME = "repair"
KEPT = 64
"""Most tries: two a day for one kind of failure of each GPU, and those that were refused."""
COUNTS_MOST = 64
BUNDLES_MOST = 64
_BUNDLED = frozenset({"bundle_made", "bundle_failed"})
"""Kinds of events of another feature: they report that the data of a failure were saved, or why not."""
KINDS = frozenset({EventKind.REPAIR_BEGUN, EventKind.REPAIR_ENDED, EventKind.REPAIR_TRIED, EventKind.SUMMED, *_BUNDLED})
_COUNTS, _BUNDLES = Key("repairs", NODE), Key("repair_bundles", NODE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    tries: tuple[Try, ...] = ()
    """The newest last."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Number of steps by outcome since the ledger began, as `reset_gpu_done`."""
    bundles: Mapping[str, float] = field(default_factory=dict)
    """By finding, when its bundle was made or failed (Unix time); the finding's begin if the clock was set back."""

    @property
    def open(self) -> Try | None:
        """Return the try that has begun and not ended."""
        return next((attempt for attempt in reversed(self.tries) if attempt.outcome is None), None)


EMPTY = Memory()


def memory_of(state: State) -> Memory:
    memory: Memory = state.features.get(NAME, EMPTY)
    return memory


def board_of(state: State, key: Key) -> str:
    """Return the board that a finding is about; "" if it is about the node."""
    return board(state, key.subject.slot) if key.subject.slot else ""


def fold(memory: Memory, event: Event, _: State) -> Memory:
    """Return the memory after an event of KINDS; the same object if it changes nothing."""
    match event.kind:
        case EventKind.REPAIR_BEGUN | EventKind.REPAIR_TRIED:
            return _begun(memory, event, read(Try, event))
        case EventKind.REPAIR_ENDED:
            return _ended(memory, event, read(Ended, event))
        case EventKind.SUMMED if event.key == _COUNTS:
            counts = {name: n for name, n in event.data.items() if type(n) is int and n >= 0}
            return replace(memory, counts=dict(list(counts.items())[:COUNTS_MOST]))
        case EventKind.SUMMED if event.key == _BUNDLES:
            bundles = {name: float(at) for name, at in event.data.items() if isinstance(at, int | float)}
            return replace(memory, bundles=dict(list(bundles.items())[-BUNDLES_MOST:]))
        case kind if kind in _BUNDLED and isinstance(finding := event.data.get("finding"), str):
            since = event.data.get("since")
            made = max(event.at.wall, since if isinstance(since, int | float) else 0.0)
            bundles = {**{name: at for name, at in memory.bundles.items() if name != finding}, finding: made}
            return replace(memory, bundles=dict(list(bundles.items())[-BUNDLES_MOST:]))
    return memory


def _begun(memory: Memory, event: Event, begun: Try) -> Memory:
    if not begun.id or event.key is None or any(attempt.id == begun.id for attempt in memory.tries):
        return memory
    return replace(memory, tries=(*memory.tries, replace(begun, finding=str(event.key)))[-KEPT:])


def _ended(memory: Memory, event: Event, over: Ended) -> Memory:
    if not over.id or event.key is None:
        return memory
    tries = {attempt.id: attempt for attempt in memory.tries}
    before = tries.get(over.id)
    if before is None and over.outcome is Outcome.OBSERVED:
        before = Try(
            id=over.id, step=over.step, board=over.board, at=over.at, boot_id=over.boot_id, finding=str(event.key)
        )
    if before is None or before.outcome is not None:  # the ledger lost its beginning, or it ended before
        return memory
    tries[over.id] = replace(before, outcome=over.outcome, text=over.text, ended=over.at)
    return replace(memory, tries=tuple(tries.values())[-KEPT:], counts=_counted(memory.counts, over))


def _counted(counts: Mapping[str, int], over: Ended) -> Mapping[str, int]:
    name = f"{over.step.value}_{over.outcome.value}"
    return {**counts, name: counts.get(name, 0) + 1}


def events(memory: Memory, at: Stamp, state: State) -> Iterator[Event]:
    """Yield the events whose fold gives this memory."""
    for attempt in memory.tries:
        key = Key.parse(attempt.finding)
        yield Event(kind=EventKind.REPAIR_TRIED, at=attempt.at, boot_id=attempt.boot_id, key=key, data=write(attempt))
    if memory.counts:
        yield Event(kind=EventKind.SUMMED, at=at, boot_id=state.boot_id, key=_COUNTS, data=dict(memory.counts))
    if memory.bundles:
        yield Event(kind=EventKind.SUMMED, at=at, boot_id=state.boot_id, key=_BUNDLES, data=dict(memory.bundles))
