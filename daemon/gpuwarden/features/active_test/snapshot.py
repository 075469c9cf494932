"""The published state of active tests: a part of the snapshot."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import field

from gpuwarden.features.active_test.judging.lease import Lease
from gpuwarden.features.active_test.judging.past import PastTest
from gpuwarden.features.active_test.judging.results import CODES, newest
from gpuwarden.features.active_test.memory import NAME, memory_of
from gpuwarden.health.state import State
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

FIGURES = ("int8", "verify", "write", "to_device", "to_host", "peers")
"""Figures that are published; cycles are constants of the kernels."""
GATE_STATES = ("clear", "waiting", "running", "person", "impossible")


@dataclass(frozen=True, slots=True, kw_only=True)
class GateShown:
    """The state of the test before a return."""

    state: str
    """`clear`: none is due; `waiting`; `running`; `person`: an operator must act; `impossible`: this host cannot."""
    level: str
    """Level of the test."""
    text: str = ""
    """Why the node does not return yet, or why this host or some GPUs cannot be tested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Results of `gpuwarden test` on the GPUs that belong here."""

    running: Lease | None = None
    """The test that runs now."""
    results: Mapping[str, tuple[PastTest, ...]] = field(default_factory=dict)
    """Results by slot, the newest of each level, the newest last."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Tests of a GPU by level and verdict, as `quick_failure`, since the ledger began."""
    gate: GateShown | None = None
    """The gate; None where no test comes before a restoration."""


def shown(state: State, now: Stamp) -> Shown:
    """Return the part of the judge's memory that is published."""
    memory = memory_of(state)
    lease = memory.lease if memory.lease is not None and memory.lease.holds(now) else None
    results = {slot: newest(tests) for slot, pin in state.pins.items() if (tests := memory.tests.get(pin.uuid))}
    return Shown(running=lease, results=results, counts=memory.counts)


def of(snapshot: Snapshot) -> Shown:
    """Return the part of active tests in a snapshot."""
    published: Shown = snapshot.features.get(NAME, Shown())
    return published


def looked_at(snapshot: Snapshot) -> Mapping[str, Container[str]]:
    """Return, by code, the slots of the GPUs on which the condition was looked for: those that were tested."""
    return dict.fromkeys(CODES, of(snapshot).results)


def figures(test: PastTest) -> Mapping[str, float]:
    values = test.values()
    return {name: values[name] for name in FIGURES if name in values}
