"""The requirement of a test before a return, for policy: its input, its events, and what it prevents. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpuwarden.features.active_test.gate.rules import (
    Assessed,
    Surroundings,
    assess,
    ended,
    result_text,
    returns_untested,
    wanted,
)
from gpuwarden.features.active_test.gate.state import Gate, folded
from gpuwarden.features.active_test.memory import NAME
from gpuwarden.health.event_data import write
from gpuwarden.health.model import Event, EventKind, Json, Verdict
from gpuwarden.policy.guarded import demand_of
from gpuwarden.policy.model import Why
from gpuwarden.policy.situation import Situation, failing, occupied
from gpuwarden.policy.state import PolicyState
from gpuwarden_collectors.active_test.level import Level, higher
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

CUT_SHORT = "gpuwarden was restarted while the test ran"
_GATED = frozenset({Why.FAILURE, Why.TERMINATION})
"""Reasons of exclusions that gpuwarden may lift itself: a failure ends, a termination notice may be withdrawn. An
operator's exclusion only an operator lifts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sees:
    """Input of the requirement that is not in the situation."""

    run: str = ""
    """Name of the test that this process runs; empty if none."""
    testing: bool = False
    """An active test runs on this node."""
    gpus_used: bool = False
    """A process is on a GPU."""


@dataclass(frozen=True, slots=True)
class PassedTest:
    """The requirement that a test of this level passes. `gate` is None while no exclusion requires one.

    `always`: each failure of a GPU, link or switch requires a test; otherwise only a repair does. `after_repair`: the
    least level after a repair.
    """

    level: Level
    gate: Gate | None = None
    always: bool = True
    after_repair: Level = Level.GATE

    @property
    def asked(self) -> Level:
        """Return the level that this exclusion requires."""
        repaired = self.gate is not None and self.gate.repaired
        return higher(self.level, self.after_repair) if repaired else self.level

    @property
    def applies(self) -> bool:
        return self.gate is not None

    def after(self, event: Event) -> PassedTest:
        gate = folded(self.gate, event)
        return self if gate is self.gate else replace(self, gate=gate)

    def over(self) -> PassedTest:
        return replace(self, gate=None)

    def events(self, now: Stamp, boot_id: str) -> Iterator[Event]:
        if self.gate is not None:
            yield Event(kind=EventKind.GATE_WANTED, at=now, boot_id=boot_id, data=write(self.gate))

    def news(self, state: PolicyState, seen: Situation, now: Stamp) -> Iterator[tuple[EventKind, dict[str, Json]]]:
        gate = self.gate
        causes = {*(hold.why for hold in state.holds.values()), *(intent.why for intent in state.pending.values())}
        if causes & _GATED and (self.always or gate is not None):
            more = wanted(gate, failing(state, seen.verdict), now, seen.boot_id)
            if more is not None:
                gate = more
                yield EventKind.GATE_WANTED, write(gate)
        sees = _sees(seen)
        if gate is not None and gate.run and gate.run != sees.run and not sees.testing and seen.remembered:
            over = ended(gate, self.asked, seen.verdict.gpus, CUT_SHORT, now, pause=False)
            yield EventKind.GATE_ENDED, write(over)

    def answer(self, seen: Situation, now: Stamp) -> Assessed:
        return assess(self.gate or Gate(), self.asked, _surroundings(seen), now)

    def standing(self, seen: Situation, now: Stamp) -> str:
        return result_text(self.gate or Gate(), self.asked, self.answer(seen, now), seen.verdict.gpus)

    def unmet(self, verdict: Verdict) -> str:
        return "" if self.gate is None else returns_untested(self.gate, self.asked, verdict.gpus)


def gate_of(state: PolicyState) -> Gate | None:
    """Return the gate of the current exclusion; None if it requires no test."""
    requirement = demand_of(state.requirements.get(NAME))
    return requirement.gate if isinstance(requirement, PassedTest) else None


def level_of(state: PolicyState, otherwise: Level) -> Level:
    """Return the level that the exclusion requires; `otherwise` if no test is required of this node."""
    requirement = demand_of(state.requirements.get(NAME))
    return requirement.asked if isinstance(requirement, PassedTest) else otherwise


def _sees(seen: Situation) -> Sees:
    sees: Sees = seen.features.get(NAME, Sees())
    return sees


def _surroundings(seen: Situation) -> Surroundings:
    return Surroundings(
        gpus=seen.verdict.gpus,
        testing=_sees(seen).testing,
        occupied=occupied(seen.node_states, gpus_used=_sees(seen).gpus_used),
    )
