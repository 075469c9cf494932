"""Enforcement as the daemon drives it, with the ledger as a list of events: a kill leaves the list and nothing else."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace

from gpuwarden.actuators.reconciler import Limits
from gpuwarden.engine.enforcement import Enforcement, EnforcementOptions
from gpuwarden.engine.journal import Step
from gpuwarden.health.model import Event, EventKind, Finding, Health, Verdict
from gpuwarden.policy.model import Budget, Settings
from gpuwarden.policy.situation import Situation
from gpuwarden.policy.state import PolicyState
from gpuwarden_collectors.facts import Stamp
from support.policy_story import BOOT, INSTANCE
from support.schedulers import Client, Cluster
from support.snapshots import BOOTED, gpu_verdict

PATIENCE = 60.0
SETTINGS = Settings(enforce=True, restore_passes=1, restore_after=0.0, lifted_for=0.0)
LIMITS = Limits(
    budget=Budget(percent=100, count=1_000), recount_after=0.0, first=0.01, most=0.02, away=0.01, breaker_first=0.01,
    breaker_most=0.02, refused_first=3_600.0,
)  # fmt: skip


def rig_options(limits: Limits = LIMITS, settings: Settings = SETTINGS, look_every: float = 0.05) -> EnforcementOptions:
    settings = replace(settings, look_every=look_every, look_often=look_every / 2)
    return EnforcementOptions(settings=settings, limits=limits, first_read=0.0)


class Killed(BaseException):
    """Ends whatever runs, as SIGKILL would."""


class Rig:
    """A node of a cluster. `ledger` outlives the enforcement of it; `committed` False: the disk cannot be written."""

    def __init__(self, cluster: Cluster, node: str = "n1", *, options: EnforcementOptions | None = None) -> None:
        self.cluster = cluster
        self.node = node
        self.options = options or rig_options()
        self.ledger: list[Event] = [Event(kind=EventKind.BOOT, at=Stamp(0.0, BOOTED), boot_id=BOOT)]
        self.committed = True
        self.on_record: Callable[[], None] = lambda: None
        self.verdict = Verdict(at=Stamp(0.0, BOOTED), health=Health.HEALTHY)
        self.sequence = 0
        self._ticks = itertools.count(1)
        self.begin()

    def begin(self) -> None:
        """A daemon that knows what is in the ledger."""
        self.client = Client(self.cluster, self.node, self.clock)
        self.enforcement = Enforcement(
            [self.client], self.options, append=self._append, changed=lambda: None, committed=self._is_committed,
            boot_id=BOOT, clock=self.clock,
        )  # fmt: skip
        for event in self.ledger:
            self.enforcement.fold(event)

    def clock(self) -> Stamp:
        tick = next(self._ticks) / 1_000.0
        return Stamp(tick, BOOTED + tick)

    @property
    def state(self) -> PolicyState:
        return self.enforcement.state

    def passes(self, *findings: Finding) -> None:
        health = Health.FAILURE if findings else Health.HEALTHY
        gpus = tuple(gpu_verdict(n) for n in range(8))
        self.verdict = Verdict(at=self.clock(), health=health, findings=findings, gpus=gpus)
        self.step()

    def step(self) -> None:
        self.sequence += 1
        situation = Situation(verdict=self.verdict, sequence=self.sequence, ready=True, boot_id=BOOT, instance=INSTANCE)
        self.ledger += self.enforcement.step(situation, self.clock())
        self.enforcement.carry_out()

    def _append(self, events: Iterable[Event], *, step: Step) -> None:
        events = tuple(events)
        for event in events:
            self.enforcement.fold(event)
        self.on_record()
        self.ledger += events
        self.step()

    async def _is_committed(self) -> bool:
        return self.committed

    async def until(self, condition: Callable[[], object]) -> None:
        """Passes go on until it holds, or somebody was killed."""
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await asyncio.sleep(0.001)
                self.step()

    async def kill(self) -> None:
        for task in self.enforcement._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError, Killed):
                await task

    @property
    def dead(self) -> bool:
        return any(task.done() for task in self.enforcement._tasks)

    @property
    def reason(self) -> str:
        return self.cluster.nodes[self.node].reason

    @property
    def writes(self) -> list[str]:
        return [act for node, act, _ in self.cluster.writes if node == self.node]
