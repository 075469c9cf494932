"""Shows what policy would have requested of a scheduler during a trace: it decides on every step without acting.

The scheduler is assumed to have no exclusion, and the pool to be only this node, since a trace contains no others.
The decisions are those of mode observe, and the breaker depends only on its configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from gpuwarden.engine.engine import Engine
from gpuwarden.health.judge import Step
from gpuwarden.health.model import Event, EventKind
from gpuwarden.policy.breaker import refusal
from gpuwarden.policy.exclusion import decide
from gpuwarden.policy.fold import fold
from gpuwarden.policy.model import Act, Budget, FleetCount, NodeState, Settings, Why
from gpuwarden.policy.situation import Situation
from gpuwarden.policy.state import PolicyState
from gpuwarden.trace.records import Began, Record

SCHEDULER = "scheduler"


class Rehearsal:
    """Policy that follows a replay record by record."""

    def __init__(self, settings: Settings, budget: Budget) -> None:
        self._settings = replace(settings, enforce=False)
        self._refusal = refusal(budget, FleetCount(node="", pool=1))
        self._state = PolicyState()

    def take(self, record: Record, steps: Iterable[Step], engine: Engine) -> Iterator[tuple[Event, ...]]:
        """Yield, for each step, the events of policy's decision. `engine` has processed `record` already."""
        if isinstance(record, Began):
            self._begin(record)
        for step in steps:
            yield tuple(self._wanted(step, engine))

    def _begin(self, record: Began) -> None:
        """Handle a start of the daemon: reset short-lived fields, or rebuild the state from recorded ledger events."""
        if record.memory is None:
            self._state = replace(self._state, clean=0, sequence=0, unknown_since=None)
        else:
            self._state = PolicyState()
            self._remember(record.memory)

    def _remember(self, events: Iterable[Event]) -> None:
        for event in events:
            self._state = fold(self._state, event)

    def _wanted(self, step: Step, engine: Engine) -> Iterator[Event]:
        self._remember(step.events)
        now = step.verdict.at
        seen = engine.observed_at is not None and step.verdict.expected is not None
        situation = Situation(
            verdict=step.verdict,
            sequence=engine.sequence,
            boot_id=engine.view.boot_id,
            ready=seen and engine.view.pci.outcome is not None,
            actuators=(SCHEDULER,),
            node_states={SCHEDULER: NodeState(at=now)},
        )
        decision = decide(self._state, situation, self._settings, now)
        self._state = decision.state
        return (self._refused(event) for event in decision.events)

    def _refused(self, event: Event) -> Event:
        """Return the event; an exclusion for a failure gets the reason for which the breaker would have deferred it."""
        out = event.data.get("intent") == Act.EXCLUDE.value and event.data.get("why") == Why.FAILURE.value
        if event.kind == EventKind.INTENDED and out and self._refusal:
            return replace(event, data={**event.data, "breaker": self._refusal})
        return event
