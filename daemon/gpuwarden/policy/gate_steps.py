"""The return gate within one decision of policy: its input from the situation, the events that follow, and what it prevents. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from gpuwarden.health.event_data import write
from gpuwarden.health.model import EventKind, Json
from gpuwarden.policy.gate_state import Gate
from gpuwarden.policy.model import Settings, Why
from gpuwarden.policy.return_gate import Assessed, Surroundings, assess, ended, result_text, wanted
from gpuwarden.policy.situation import Situation, failing
from gpuwarden.policy.state import PolicyState
from gpuwarden_collectors.active_test.level import Level
from gpuwarden_collectors.facts import Stamp

CUT_SHORT = "gpuwarden was restarted while the test ran"
_GATED = frozenset({Why.FAILURE, Why.TERMINATION})
"""An announced end may be called off; what an operator excluded only an operator restores."""


class GateSteps:
    """The return gate's part in one decision. `assessed`: where the gate stands, None until it was assessed."""

    def __init__(self, seen: Situation, settings: Settings, now: Stamp) -> None:
        self.assessed: Assessed | None = None
        self._seen = seen
        self._level = Level(settings.gate)
        self._now = now

    def bars(self, state: PolicyState) -> str:
        """Why the exclusion we hold may not be lifted before a test; "" if it may."""
        return "" if state.gate is None else self._assessed(state.gate).text

    def shows(self, gate: Gate) -> str:
        """State of the test, for a person who decides on the return."""
        return result_text(gate, self._level, self._assessed(gate), self._seen.verdict.gpus)

    def _assessed(self, gate: Gate) -> Assessed:
        self.assessed = assess(gate, self._level, self._surroundings(), self._now)
        return self.assessed

    def events(self, state: PolicyState) -> Iterator[tuple[EventKind, dict[str, Json]]]:
        gate, seen = state.gate, self._seen
        causes = {*(hold.why for hold in state.holds.values()), *(one.why for one in state.pending.values())}
        if causes & _GATED:
            more = wanted(gate, failing(state, seen.verdict), self._now, seen.boot_id)
            if more is not None:
                gate = more
                yield EventKind.GATE_WANTED, write(gate)
        if gate is not None and gate.run and gate.run != seen.gate_run and not seen.testing and seen.remembered:
            over = ended(gate, self._level, seen.verdict.gpus, CUT_SHORT, self._now, pause=False)
            yield EventKind.GATE_ENDED, write(over)

    def _surroundings(self) -> Surroundings:
        seen = self._seen
        return Surroundings(gpus=seen.verdict.gpus, testing=seen.testing, occupied=self._occupied())

    def _occupied(self) -> str:
        """Why the node is busy; "" if it is not. Uses the scheduler's job list if there is one, else the processes on
        the GPUs.
        """
        states = self._seen.node_states
        if away := [name for name, state in states.items() if not state.reachable]:
            return f"{', '.join(away)} cannot be asked for jobs here"
        asked = {name: state for name, state in states.items() if state.empty is not None}
        for name, state in asked.items():
            if state.schedulable:
                return f"{name} may start jobs here ({state.state})"
            if not state.empty:
                return f"{name} has jobs here ({state.state}), and they must end"
        return "processes are on the GPUs, and must end" if not asked and self._seen.gpus_used else ""
