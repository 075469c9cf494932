"""Judges the submitted results of a test: the outcome of each GPU, and the events that store it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuwarden.features.active_test.judging.judgement import judge
from gpuwarden.features.active_test.judging.lease import Lease
from gpuwarden.features.active_test.judging.outcome import Outcome
from gpuwarden.features.active_test.judging.past import PastTest, kept
from gpuwarden.features.active_test.judging.results import ends_memory_finding, tested
from gpuwarden.features.active_test.memory import memory_of
from gpuwarden.health.memory import State
from gpuwarden.health.model import Event, EventKind, Key, gpu
from gpuwarden_collectors.active_test.facts import GpuTest
from gpuwarden_collectors.facts import Stamp

ENDED_BY_A_PASSED_TEST = "memory_degrading"
"""Code of a latched finding from readings. Only a test ends it, since readings of an idle GPU show nothing about it."""


def submitted(
    state: State, tests: Sequence[GpuTest], now: Stamp, boot_id: str, lease: Lease | None = None
) -> tuple[dict[str, Outcome], list[Event]]:
    """Judge the `tests` of one run under this lease. Returns the outcomes by UUID and the events that store them.

    Only results of GPUs that belong here are stored, and none twice, as after a second attempt to submit them.
    """
    started = {(test.uuid, test.started.wall) for test in tests}
    past = {
        uuid: [test for test in results if (uuid, test.started) not in started]
        for uuid, results in memory_of(state).tests.items()
    }
    slots = {pin.uuid: slot for slot, pin in state.pins.items() if pin.uuid}
    xids = {} if lease is None else {uuid: lease.xids_of(slot) for uuid, slot in slots.items()}
    outcomes = judge(tests, past, xids)
    first = {test.uuid: test for test in reversed(tests) if test.uuid in slots}
    events: list[Event] = []
    for uuid, test in first.items():
        if any(past_test.started == test.started.wall for past_test in memory_of(state).tests.get(test.uuid, ())):
            continue
        result = kept(test, outcomes[uuid], now, xids.get(uuid, ()))
        events += _events(state, slots[uuid], result, boot_id)
    return outcomes, events


def _events(state: State, slot: str, result: PastTest, boot_id: str) -> Iterator[Event]:
    yield tested(slot, result, boot_id)
    key = Key(ENDED_BY_A_PASSED_TEST, gpu(slot))
    if ends_memory_finding(result) and key in state.tracks:
        by = f"a passed {result.level.value} test"
        yield Event(kind=EventKind.RELEASED, at=result.at, boot_id=boot_id, key=key, data={"by": by})
