"""The part of a feature that is in no release, and has bugs (`faulty_tables.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gpuwarden.health.components import Component, Source
from gpuwarden.health.model import Event, EventKind, Json, Verdict
from gpuwarden.policy.guarded import Objection
from gpuwarden.policy.requirement import Answer
from gpuwarden.policy.situation import Situation
from gpuwarden.policy.state import PolicyState
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden.publish.sockets.control import Verb
from gpuwarden.runtime.part import Part, Service
from gpuwarden.runtime.wiring import Site
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.facts import Stamp
from support.faulty_tables import may_raise


class Demand:
    """A demand that is met whenever it can say so, and says in each step that something follows."""

    @property
    def applies(self) -> bool:
        may_raise("applies")
        return True

    def after(self, _: Event) -> Demand:
        may_raise("after")
        return self

    def over(self) -> Demand:
        may_raise("over")
        return self

    def events(self, _: Stamp, __: str) -> Iterator[Event]:
        may_raise("events")
        return iter(())

    def news(self, _: PolicyState, __: Situation, ___: Stamp) -> Iterator[tuple[EventKind, dict[str, Json]]]:
        may_raise("news")
        return iter(())

    def answer(self, _: Situation, __: Stamp) -> Answer:
        may_raise("answer")
        return Objection("")

    def standing(self, _: Situation, __: Stamp) -> str:
        may_raise("standing")
        return "met"

    def unmet(self, _: Verdict) -> str:
        may_raise("unmet")
        return ""


class Memory:
    def fold(self, _: Event) -> None:
        may_raise("fold")

    @contextmanager
    def rebuilding(self) -> Iterator[None]:
        may_raise("rebuilding")
        yield

    def checkpoint(self, _: Stamp) -> list[Event]:
        may_raise("checkpoint")
        return []


class Faulty(Part):
    def __init__(self) -> None:
        may_raise("part")
        self.projections = (Memory(),)
        self.requirements = {"faulty": Demand()}
        self.outputs = (self._appended,)

    def _appended(self, _: Iterable[Event]) -> None:
        may_raise("outputs")

    def errors(self) -> Mapping[Component, Source]:
        may_raise("errors")
        return {Component.SLURM: self._error}

    def _error(self, _: Stamp) -> str:
        may_raise("source")
        return ""

    def verbs(self) -> Mapping[str, Verb]:
        may_raise("verbs")
        return {}

    def settled(self) -> bool:
        may_raise("settled")
        return True

    async def announced(self) -> str:
        may_raise("announced")
        return ""

    def run(self) -> None:
        may_raise("run")

    def reloaded(self) -> None:
        may_raise("reloaded")

    async def stop(self) -> None:
        may_raise("stop")

    async def close(self) -> None:
        may_raise("close")

    def seen(self, situation: Situation, _: Stamp) -> Situation:
        may_raise("seen")
        return situation

    def step(self) -> None:
        may_raise("step")

    def shown(self, snapshot: Snapshot, _: Stamp) -> Snapshot:
        may_raise("shown")
        return snapshot

    def publish(self, _: Snapshot) -> None:
        may_raise("publish")


def part(_: Site, __: Service, ___: Clock) -> Any:
    return Faulty()
