"""A feature that is in no release, and has bugs: it raises in each call that a file names.

`beside_the_real_ones` gives the environment of Python processes in whose list of features it is from their start.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
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

VARIABLE = "FAULTY_CALLS"
"""The file with the names of the calls that raise."""
LISTED = """
import sys
from gpuwarden import features
from support import faulty_feature
features.FEATURES = {"faulty": frozenset({"daemon"}), **features.FEATURES}
features.parts.__defaults__ = (features.FEATURES,)
sys.modules["gpuwarden.features.faulty.daemon"] = faulty_feature
"""


def beside_the_real_ones(folder: Path, calls: Path) -> Mapping[str, str]:
    (folder / "sitecustomize.py").write_text(LISTED)
    return {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path]), VARIABLE: str(calls)}


def _may_raise(call: str) -> None:
    if call in Path(os.environ[VARIABLE]).read_text().split():
        raise LookupError(f"a bug in {call}")


class Demand:
    """A demand that is met whenever it can say so, and says in each step that something follows."""

    @property
    def applies(self) -> bool:
        _may_raise("applies")
        return True

    def after(self, _: Event) -> Demand:
        _may_raise("after")
        return self

    def over(self) -> Demand:
        _may_raise("over")
        return self

    def events(self, _: Stamp, __: str) -> Iterator[Event]:
        _may_raise("events")
        return iter(())

    def news(self, _: PolicyState, __: Situation, ___: Stamp) -> Iterator[tuple[EventKind, dict[str, Json]]]:
        _may_raise("news")
        return iter(())

    def answer(self, _: Situation, __: Stamp) -> Answer:
        _may_raise("answer")
        return Objection("")

    def standing(self, _: Situation, __: Stamp) -> str:
        _may_raise("standing")
        return "met"

    def unmet(self, _: Verdict) -> str:
        _may_raise("unmet")
        return ""


class Memory:
    def fold(self, _: Event) -> None:
        _may_raise("fold")

    @contextmanager
    def rebuilding(self) -> Iterator[None]:
        _may_raise("rebuilding")
        yield

    def checkpoint(self, _: Stamp) -> list[Event]:
        _may_raise("checkpoint")
        return []


class Faulty(Part):
    def __init__(self) -> None:
        _may_raise("part")
        self.projections = (Memory(),)
        self.requirements = {"faulty": Demand()}
        self.outputs = (self._appended,)

    def _appended(self, _: Iterable[Event]) -> None:
        _may_raise("outputs")

    def errors(self) -> Mapping[Component, Source]:
        _may_raise("errors")
        return {Component.SLURM: self._error}

    def _error(self, _: Stamp) -> str:
        _may_raise("source")
        return ""

    def verbs(self) -> Mapping[str, Verb]:
        _may_raise("verbs")
        return {}

    def settled(self) -> bool:
        _may_raise("settled")
        return True

    async def announced(self) -> str:
        _may_raise("announced")
        return ""

    def run(self) -> None:
        _may_raise("run")

    def reloaded(self) -> None:
        _may_raise("reloaded")

    async def stop(self) -> None:
        _may_raise("stop")

    async def close(self) -> None:
        _may_raise("close")

    def seen(self, situation: Situation, _: Stamp) -> Situation:
        _may_raise("seen")
        return situation

    def step(self) -> None:
        _may_raise("step")

    def shown(self, snapshot: Snapshot, _: Stamp) -> Snapshot:
        _may_raise("shown")
        return snapshot

    def publish(self, _: Snapshot) -> None:
        _may_raise("publish")


def part(_: Site, __: Service, ___: Clock) -> Any:
    return Faulty()
