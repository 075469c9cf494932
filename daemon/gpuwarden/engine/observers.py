"""An engine with listeners, which get everything that it takes in, in the same order.

A listener must not block; what it raises is dropped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gpuwarden.engine.engine import Engine
from gpuwarden.health.judge import Step
from gpuwarden.health.model import Event
from gpuwarden.health.view import Rules
from gpuwarden.trace.records import Accepted, Acknowledged, ErrorsChanged, HostEventsSeen, Passed, Record, RulesChanged
from gpuwarden_collectors.base import Clock, Observation
from gpuwarden_collectors.event_facts import HostEvent
from gpuwarden_collectors.facts import Stamp

Listener = Callable[[Record], None]


class ObservedEngine(Engine):
    """`listeners` may come and go at any time."""

    def __init__(self, boot_id: str, rules: Rules, clock: Clock) -> None:
        super().__init__(boot_id, rules)
        self._clock = clock
        self._ruled = rules
        self.listeners: list[Listener] = []

    def observed(self, observation: Observation[Any]) -> bool:
        self._each(Passed(observation))
        return super().observed(observation)

    def ingest(self, events: Iterable[HostEvent]) -> None:
        events = tuple(events)
        self._each(HostEventsSeen(at=self._clock(), events=events))
        super().ingest(events)

    def set_errors(self, errors: Mapping[str, str]) -> None:
        if dict(errors) != dict(self.view.errors):
            self._each(ErrorsChanged(at=self._clock(), errors=dict(errors)))
        super().set_errors(errors)

    def step(self, now: Stamp) -> Step:
        if self.rules is not self._ruled:  # a reload has replaced them
            self._ruled = self.rules
            self._each(RulesChanged(at=now, rules=self.rules))
        return super().step(now)

    def acknowledge(self, finding: str, by: str, now: Stamp) -> Event:
        event = super().acknowledge(finding, by, now)
        self._each(Acknowledged(at=now, finding=finding, by=by))
        return event

    def accept_inventory(self, now: Stamp) -> list[Event]:
        events = super().accept_inventory(now)
        self._each(Accepted(at=now))
        return events

    def _each(self, record: Record) -> None:
        for listener in tuple(self.listeners):
            with contextlib.suppress(Exception):
                listener(record)
