"""Replays a trace with the same judge, at full speed, and returns the verdicts that a daemon would have given.

Steps are made as in the daemon's loop: after each GPU pass, after a changed pass of another collector, after host
events, and during silence. A restart keeps only the events in the ledger, like a daemon.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import field

from gpuwarden.engine.engine import Engine
from gpuwarden.health.checkpoint import checkpoint
from gpuwarden.health.judge import Step
from gpuwarden.health.model import Event, EventKind, Health
from gpuwarden.health.view import Rules
from gpuwarden.trace.records import (
    Accepted,
    Acknowledged,
    ActiveTested,
    Began,
    ErrorsChanged,
    HostEventsSeen,
    Passed,
    Record,
    RulesChanged,
)
from gpuwarden_collectors.dataclass import dataclass, replace
from gpuwarden_collectors.facts import Stamp

SILENT_STEP = 5.0
"""Seconds between the steps of the daemon while there is no input."""
SILENCE = 1.5 * SILENT_STEP
"""Seconds without a step that count as silence rather than as a slow pass."""
SILENT_STEPS_MOST = 120
"""Most steps in one gap. They cover ten minutes, after which silence has had its full effect on a verdict."""
SILENT_STEPS_OVERALL = 20_000
"""Most such steps in a trace: 28 hours of silence, judged in ten seconds. Beyond that, each gap between two records is
judged by one step at its end."""
EVENTS_KEPT = 4096
"""Most events kept for a restart; a checkpoint replaces more, as in the ledger."""


class Replay:
    """Judges a trace record by record. `rules`: None uses those in the trace."""

    def __init__(self, rules: Rules | None = None) -> None:
        self._rules = rules
        self._events: list[Event] = []
        self._ordered: tuple[Event, ...] = ()
        """Events of an operator's order or of an active test, which come from no step."""
        self._now = Stamp(0.0, 0.0)
        self._silent_steps = 0
        self.engine = Engine("", rules or Rules())

    @property
    def is_coarse(self) -> bool:
        """Return True if silence was judged less often than a daemon would have judged it."""
        return self._silent_steps > SILENT_STEPS_OVERALL

    def take(self, record: Record) -> list[Step]:
        """Return the judge's steps for the silence before this record, and for the record with its own events."""
        if isinstance(record, Began):
            return [self._begin(record)]
        steps = list(self._silence(record.at))
        self._ordered = ()
        if self._arrives(record):
            step = self._step(record.at)
            steps.append(replace(step, events=(*self._ordered, *step.events)) if self._ordered else step)
        return steps

    def _begin(self, record: Began) -> Step:
        memory = self._events if record.memory is None else list(record.memory)
        self._events, self._now = memory, record.at
        self.engine = Engine(record.boot_id, self._rules or record.rules, memory)
        for observation in record.passes:
            self.engine.observed(observation)
        return self._step(record.at)

    def _arrives(self, record: Record) -> bool:
        """Pass the record to the engine. Return True if it requires a step."""
        match record:
            case Passed(observation):
                differs = self.engine.observed(observation)
                return differs or observation.collector == "nvml" or self.engine.undecided(record.at)
            case HostEventsSeen(events=events):
                self.engine.ingest(events, record.at)
            case ErrorsChanged(errors=errors):
                self.engine.set_errors(errors, record.at)
            case RulesChanged(rules=rules):
                self.engine.rules = self._rules or rules
            case Acknowledged(finding=finding, by=by):
                with suppress(ValueError):  # under other rules there may be nothing to acknowledge
                    self._appended([self.engine.acknowledge(finding, by, record.at)])
            case Accepted():
                with suppress(ValueError):
                    self._appended(self.engine.accept_inventory(record.at))
            case ActiveTested(events=events_of_test):
                self._appended(self.engine.active_tested(events_of_test, record.at))
        return True

    def _appended(self, events: Sequence[Event]) -> None:
        for event in events:
            self.engine.fold(event)
        self._events += events
        self._ordered = tuple(events)

    def _silence(self, until: Stamp) -> Iterator[Step]:
        for _ in range(SILENT_STEPS_MOST):
            if until.boottime - self._now.boottime <= SILENCE:
                return
            self._silent_steps += 1
            ahead = (until.boottime if self.is_coarse else self._now.boottime + 2 * SILENT_STEP) - SILENT_STEP
            yield self._step(Stamp(ahead, ahead + (self._now.wall - self._now.boottime)))

    def _step(self, at: Stamp) -> Step:
        """Make a step, never earlier than the last one, although collectors finish passes out of order."""
        self._now = max(at, self._now)
        step = self.engine.step(self._now)
        self._events += step.events
        if len(self._events) > EVENTS_KEPT:
            self._events = checkpoint(self.engine.state, self._now)
        return step


@dataclass(slots=True)
class Tally:
    """The result of a replay. `seconds`: time for which each health was published. `wanted`: intents of policy."""

    passes: int = 0
    host_events: int = 0
    boots: int = 0
    wanted: int = 0
    seconds: dict[Health, float] = field(default_factory=dict)
    last: Step | None = None

    def add(self, record: Record, steps: list[Step]) -> None:
        match record:
            case Passed(observation):
                self.passes += observation.collector == "nvml"
            case HostEventsSeen(events=events):
                self.host_events += len(events)
            case Began():
                self.last = None  # the time without a daemon is not counted
        for step in steps:
            self._count(step)

    def _count(self, step: Step) -> None:
        self.boots += any(event.kind == EventKind.BOOT for event in step.events)
        if self.last is not None:
            before = self.last.verdict
            lasted = step.verdict.at.boottime - before.at.boottime
            self.seconds[before.health] = self.seconds.get(before.health, 0.0) + lasted
        self.last = step
