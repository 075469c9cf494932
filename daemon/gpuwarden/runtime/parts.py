"""The parts of all features in the running daemon. Each is called separately: its errors stop neither the judge nor
another part.

A call to act that fails is neither repeated nor undone. A query that fails counts as a refusal: the requirement is not
met, the jobs are not settled, the component does not work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gpuwarden.engine.engine import MEMORY_EVENTS
from gpuwarden.engine.faults import Faults, Guard
from gpuwarden.engine.journal import Projection
from gpuwarden.health.components import Component, Source
from gpuwarden.health.model import Event
from gpuwarden.policy import guarded
from gpuwarden.policy.guarded import Guarded
from gpuwarden.policy.requirement import Requirement
from gpuwarden.policy.situation import Situation
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden.publish.sockets.control import Verb
from gpuwarden.publish.sockets.jobs import JobVerb
from gpuwarden.runtime.part import Part, Service
from gpuwarden.runtime.wiring import Site
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.facts import Stamp

MADE = "part"
CHECKPOINT = "checkpoint"
_UNRECORDED = frozenset({MADE, CHECKPOINT, MEMORY_EVENTS, guarded.FOLD, guarded.EVENTS})
"""Calls whose failure makes a checkpoint incomplete."""


class Parts:
    """The parts of the configured features. `features`: by name, the module that creates the part."""

    def __init__(self, features: Mapping[str, Any], site: Site, service: Service, clock: Clock, faults: Faults) -> None:
        self._faults = faults
        self._guards = {name: Guard(faults, name) for name in features}
        made = {
            name: self._guards[name].call(MADE, None, feature.part, site, service, clock)
            for name, feature in features.items()
        }
        self._parts: dict[str, Part] = {name: part for name, part in made.items() if part is not None}

    def _each(self) -> Iterator[tuple[Part, Guard]]:
        return ((part, self._guards[name]) for name, part in self._parts.items())

    # --- used to create the daemon

    @property
    def requirements(self) -> dict[str, Requirement]:
        """Return the requirements of features. A feature that could not be created has an unknown requirement, which is
        not met.
        """
        demands: dict[str, Requirement] = {
            name: Guarded(None, guard) for name, guard in self._guards.items() if MADE in guard.standing()
        }
        for part, guard in self._each():
            demands |= {name: Guarded(demand, guard) for name, demand in part.requirements.items()}
        return demands

    @property
    def projections(self) -> tuple[Projection, ...]:
        return tuple(_Projection(projection, guard) for part, guard in self._each() for projection in part.projections)

    @property
    def outputs(self) -> tuple[Callable[[Iterable[Event]], None], ...]:
        return tuple(_output(output, guard) for part, guard in self._each() for output in part.outputs)

    def errors(self) -> Iterator[Mapping[Component, Source]]:
        """Yield, for each part, the functions that report why its components do not work."""
        none: Mapping[Component, Source] = {}
        for part, guard in self._each():
            sources = guard.call("errors", none, part.errors)
            yield {component: _source(component, source, guard) for component, source in sources.items()}

    def verbs(self) -> dict[str, Verb]:
        verbs: dict[str, Verb] = {}
        none: Mapping[str, Verb] = {}
        for part, guard in self._each():
            verbs |= guard.call("verbs", none, part.verbs)
        return verbs

    def job_verbs(self) -> dict[str, JobVerb]:
        verbs: dict[str, JobVerb] = {}
        none: Mapping[str, JobVerb] = {}
        for part, guard in self._each():
            verbs |= guard.call("job_verbs", none, part.job_verbs)
        return verbs

    def recorded(self) -> bool:
        """Return True if a checkpoint would be complete for all features."""
        return not self._faults.stands(_UNRECORDED)

    # --- life

    def run(self) -> None:
        for part, guard in self._each():
            guard.call("run", None, part.run)

    def reloaded(self) -> None:
        for part, guard in self._each():
            guard.call("reloaded", None, part.reloaded)

    async def saved(self) -> None:
        for part, guard in self._each():
            try:
                await part.saved()
            except Exception as error:  # noqa: BLE001 - the other parts must still save
                guard.raised("saved", error)
            else:
                guard.went_well("saved")

    async def stop(self) -> None:
        for part, guard in self._each():
            try:
                await part.stop()
            except Exception as error:  # noqa: BLE001 - the other parts must still be stopped
                guard.raised("stop", error)

    async def close(self) -> None:
        for part, guard in self._each():
            try:
                await part.close()
            except Exception as error:  # noqa: BLE001 - as above
                guard.raised("close", error)

    # --- a step

    def seen(self, situation: Situation, now: Stamp) -> Situation:
        for part, guard in self._each():
            situation = guard.call(guarded.SEEN, situation, part.seen, situation, now)
        return situation

    def step(self) -> None:
        for part, guard in self._each():
            guard.call("step", None, part.step)

    def shown(self, snapshot: Snapshot, now: Stamp) -> Snapshot:
        for part, guard in self._each():
            snapshot = guard.call("shown", snapshot, part.shown, snapshot, now)
        return snapshot

    def publish(self, snapshot: Snapshot) -> None:
        for part, guard in self._each():
            guard.call("publish", None, part.publish, snapshot)

    # --- the end of this machine

    def settled(self) -> bool:
        return all(guard.call("settled", False, part.settled) for part, guard in self._each())

    async def announced(self) -> str:
        """Return what all parts do before the imminent end, and which features fail to answer."""
        texts = []
        for part, guard in self._each():
            try:
                texts.append(await part.announced())
            except Exception as error:  # noqa: BLE001 - the operator still gets the other answers
                guard.raised("announced", error)
                texts.append(f"{guard.feature} fails: see journalctl -u gpuwarden")
            else:
                guard.went_well("announced")
        return "; ".join(filter(None, texts))


class _Projection:
    """A projection of a feature. If it fails to fold an event, only this projection lacks it."""

    def __init__(self, projection: Projection, guard: Guard) -> None:
        self._projection = projection
        self._guard = guard

    def fold(self, event: Event) -> None:
        self._guard.call("fold", None, self._projection.fold, event)

    @contextmanager
    def rebuilding(self) -> Iterator[None]:
        begun: Any = self._guard.call("rebuilding", None, self._projection.rebuilding)
        if begun is not None:
            self._guard.call("rebuilding", None, begun.__enter__)
        yield
        if begun is not None and "rebuilding" not in self._guard.standing():
            self._guard.call("rebuilding", None, begun.__exit__, None, None, None)

    def checkpoint(self, now: Stamp) -> list[Event]:
        return self._guard.call(CHECKPOINT, [], self._projection.checkpoint, now)


def _output(output: Callable[[Iterable[Event]], None], guard: Guard) -> Callable[[Iterable[Event]], None]:
    return lambda events: guard.call("outputs", None, output, events)


def _source(component: Component, source: Source, guard: Guard) -> Source:
    unknown = f"{guard.feature} fails: whether it works is not known"
    return lambda now: guard.call(f"errors.{component}", unknown, source, now)
