"""The memory of active tests: results, the running test, and whether this host was ever able to test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace

from gpuwarden.features.active_test.judging.lease import Lease, begun, with_lease
from gpuwarden.features.active_test.judging.results import CODES, Tests, acknowledged, test_events, with_result
from gpuwarden.health.memory import State
from gpuwarden.health.model import NODE, Event, EventKind, Key
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

NAME = "active_test"
COUNTS_MOST = 64
"""Most pairs of level and verdict, including those of other versions."""
_OF_LEASE = frozenset({EventKind.TEST_BEGUN, EventKind.TEST_ENDED, EventKind.TEST_XID, EventKind.BOOT})
KINDS = _OF_LEASE | {EventKind.TESTED, EventKind.ACKNOWLEDGED, EventKind.GATE_ABLE, EventKind.SUMMED}
_COUNTS = Key("tests", NODE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    tests: Tests = field(default_factory=dict)
    """Results of active tests of each board."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Number of tests of single GPUs by level and verdict, as `quick_failure`."""
    lease: Lease | None = None
    """The active test that runs, or ran last in this boot."""
    able: bool = False
    """This host was able to test at least once."""


EMPTY = Memory()


def memory_of(state: State) -> Memory:
    memory: Memory = state.features.get(NAME, EMPTY)
    return memory


def fold(memory: Memory, event: Event, state: State) -> Memory:
    """Return the memory after an event of KINDS; the same object if it changes nothing."""
    if event.kind in _OF_LEASE:
        lease = with_lease(memory.lease, event)
        return memory if lease is memory.lease else replace(memory, lease=lease)
    match event.kind:
        case EventKind.TESTED:
            return replace(memory, tests=with_result(memory.tests, event), counts=_counted(memory.counts, event))
        case EventKind.GATE_ABLE:
            return replace(memory, able=True)
        case EventKind.SUMMED if event.key == _COUNTS:
            counts = {name: n for name, n in event.data.items() if type(n) is int and n >= 0}
            return replace(memory, counts=dict(list(counts.items())[:COUNTS_MOST]))
        case EventKind.ACKNOWLEDGED if event.key is not None and event.key.code in CODES:
            pin = state.pins.get(event.key.subject.slot)
            return memory if pin is None else replace(memory, tests=acknowledged(memory.tests, pin.uuid, event.key))
    return memory


def _counted(counts: Mapping[str, int], event: Event) -> Mapping[str, int]:
    name = f"{event.data.get('level')}_{event.data.get('verdict')}"[:64]
    if name not in counts and len(counts) >= COUNTS_MOST:
        return counts
    return {**counts, name: counts.get(name, 0) + 1}


def events(memory: Memory, at: Stamp, state: State) -> Iterator[Event]:
    """Yield the events whose fold gives this memory."""
    boot = state.boot_id
    yield from test_events(memory.tests, {pin.uuid: slot for slot, pin in state.pins.items()}, boot)
    if memory.lease is not None:
        yield begun(memory.lease)
    if memory.able:
        yield Event(kind=EventKind.GATE_ABLE, at=at, boot_id=boot)
    if memory.counts:  # last: replaces the counts that folding the tests adds to
        yield Event(kind=EventKind.SUMMED, at=at, boot_id=boot, key=_COUNTS, data=dict(memory.counts))
