"""Whatever the readers report, each step has a verdict, and a check that breaks blinds no other."""

from __future__ import annotations

import dataclasses
import math
import random
import typing
from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any

import pytest

from gpuwarden.engine.engine import Engine
from gpuwarden.health.checkpoint import checkpoint
from gpuwarden.health.detectors import COUNTERS
from gpuwarden.health.model import Advice, Event, Health, Severity
from gpuwarden.health.state import State, fold
from gpuwarden.health.view import CheckRule, Rules
from gpuwarden.trace.records import COLLECTORS
from gpuwarden_collectors.base import Observation, PassOutcome, WorkerReport
from gpuwarden_collectors.event_facts import (
    AerEvent,
    GpuResetEvent,
    KernelLineEvent,
    LogGap,
    OomKillEvent,
    SxidEvent,
    XidEvent,
)
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.host_facts import StorageFacts
from support.hosts import WALL, slot
from support.whole_hosts import WholeHost, mount

NUMBERS = (0, 0, 1, 1, 2, 3, 4, 7, 16, 45, 63, 79, 94, 95, 119, 149, 154, 255, -1, -2, 2**31 - 1, 2**32 - 1, 2**63, 10**30)  # fmt: skip
REALS = (0.0, 1.0, -1.0, 5.0, 300.0, 1e9, 1e300, -1e300)
TEXTS = ("", "active", "failed", "loaded", "/", "mlx5_0", "x" * 300, "é|;@.", "12", "nvidia-fabricmanager.service", "DOWN")  # fmt: skip
TIMES = ({}, *({counter: at} for counter in COUNTERS for at in REALS))
DRIVERS = ("nvidia", "", "vfio-pci")
EVENTS = (
    XidEvent,
    XidEvent,
    SxidEvent,
    AerEvent,
    GpuResetEvent,
    KernelLineEvent,
    KernelLineEvent,
    OomKillEvent,
    LogGap,
)


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


class Chance:
    """Values of any type that facts are made of, extreme ones among them; `now` is the newest stamp that they may carry."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = Stamp(0.0, 0.0)

    def any(self, kind: Any, name: str = "") -> Any:
        of = typing.get_origin(kind)
        if of in (UnionType, typing.Union):
            return self.any(self.random.choice(typing.get_args(kind)), name)
        if of is tuple:
            of_the_site = name == "excluded"  # and checked there
            many = 0 if of_the_site else self.random.choice((0, 1, 2, 4))
            return tuple(self.any(typing.get_args(kind)[0], name) for _ in range(many))
        if kind is Stamp:
            ago = self.random.choice((0, 0, 1, 100, 1e5))
            return Stamp(max(0.0, self.now.boottime - ago), self.now.wall - self.random.choice((0, ago, 1e6)))
        if isinstance(kind, type) and issubclass(kind, StrEnum):
            return self.random.choice(list(kind))
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            hints = _hints(kind)
            return kind(**{field.name: self.any(hints[field.name], field.name) for field in dataclasses.fields(kind)})
        return self.random.choice(_choices(kind, name))

    def observation(self, collector: str) -> Observation[Any]:
        outcome = self.random.choice((*[PassOutcome.OBSERVED] * 5, *PassOutcome))
        facts = self.any(COLLECTORS[collector]) if outcome is PassOutcome.OBSERVED else None
        return Observation(
            collector=collector, outcome=outcome, started=self.now, finished=self.now, facts=facts,
            error=self.any(str), worker=self.any(WorkerReport | None),
        )  # fmt: skip


def _choices(kind: Any, name: str) -> Sequence[Any]:
    named = {"slot": (*map(slot, range(3)), ""), "driver": DRIVERS, "link": range(18), "read_at": TIMES}
    return named.get(name) or {NoneType: (None,), bool: (False, True), int: NUMBERS, float: REALS, str: TEXTS}[kind]


def story(chance: Chance, engine: Engine) -> Iterator[Event]:
    """Passes of all collectors, events, and operators, in any order; the events that came of it."""
    uptime = chance.random.choice((5.0, 1_000.0, 1e6))
    for _ in range(20):
        uptime += chance.random.choice((0.0, 0.1, 5.0, 5.0, 30.0, 700.0))
        chance.now = Stamp(uptime, WALL + uptime + chance.random.choice((0, 0, 0, -1e6, 1e6)))
        for collector in COLLECTORS:
            if chance.random.random() < 0.5:
                engine.observed(chance.observation(collector))
        kinds = [chance.random.choice(EVENTS) for _ in range(chance.random.choice((0, 0, 1, 3)))]
        engine.ingest([chance.any(kind) for kind in kinds], chance.now)
        step = engine.step(chance.now)
        yield from step.events
        for finding in step.verdict.findings:
            assert finding.key.detail != "judge", finding.evidence
            if chance.random.random() < 0.1 and finding.latched:
                event = engine.acknowledge(str(finding.key), "root", chance.now)
                engine.fold(event)
                yield event


def folded(events: Sequence[Event]) -> State:
    state = State()
    for event in events:
        state = fold(state, event)
    return state


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_there_is_a_verdict_whatever_the_facts_are(seed: int) -> None:
    for number in range(4):
        chance = Chance(100 * seed + number)
        checks = {"xid": CheckRule(severity=chance.any(Severity | None))}
        engine = Engine("boot", Rules(expected_gpus=chance.random.choice((None, 0, 2, 8)), checks=checks))
        events = list(story(chance, engine))
        again = folded(checkpoint(engine.state, chance.now))
        assert folded(events).tracks.keys() == again.tracks.keys() == engine.state.tracks.keys()


def test_a_check_that_raises_is_reported_and_blinds_no_other() -> None:
    host = WholeHost(2)
    host.step()
    host.beside.storage = StorageFacts(mounts=(replace(mount("/data"), hung_for=math.inf),))
    del host.gpus[1], host.devices[1]
    host.step()
    assert (host.health, host.codes) == (Health.FAILURE, ["gpu_missing"])
    host.run(60)
    (broken,) = host.found("collector_failed")
    assert (broken.key.detail, broken.advice) == ("judge", Advice.CONTACT_SUPPORT)
    assert "mount_hung: OverflowError" in str(broken.evidence["why"])
    host.restart_daemon()
    host.beside.storage = StorageFacts(mounts=(mount("/data"),))
    host.run(30)
    assert host.codes == ["gpu_missing"]
