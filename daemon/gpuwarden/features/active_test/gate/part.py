"""The test before a return, as a part of the daemon: it runs when policy decides that it is due."""

from __future__ import annotations

import time
from dataclasses import replace

from gpuwarden.actuators.fleet_turn import FleetTurn, Turn, TurnOptions
from gpuwarden.features.active_test.at_once import TEST, refusal
from gpuwarden.features.active_test.daemon import ActiveTests
from gpuwarden.features.active_test.gate.requirement import PassedTest, Sees, gate_of, level_of
from gpuwarden.features.active_test.gate.rules import Assessed
from gpuwarden.features.active_test.gate.runner import GateOptions, ReturnGate
from gpuwarden.features.active_test.memory import NAME, memory_of
from gpuwarden.features.active_test.options import ActiveTestOptions, level_before_return
from gpuwarden.features.active_test.snapshot import of
from gpuwarden.features.active_test.testers import read_testers
from gpuwarden.policy.situation import Situation
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden.runtime.part import Part, Service
from gpuwarden.runtime.wiring import Site
from gpuwarden_collectors.active_test.level import Level
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.slurm.client import Commands, SlurmClient
from gpuwarden_collectors.slurm.options import SlurmOptions

PROBE_AND_START = 120.0
"""Seconds by which the mark of a test outlasts `test.gate_timeout`."""


def gated(site: Site, service: Service, clock: Clock, *, always: bool) -> Part:
    """Return the part that requires a test before a return: before each if `always`, otherwise only after a repair.

    In mode observe, which restores nothing, the part records the requirement but runs no test.
    """
    level = level_before_return(site.config)
    after_repair = level_before_return(site.config, repaired=True)
    enforce = site.config.mode == "enforce"
    part = Gated(level, site, service, clock) if enforce else ActiveTests(service, clock)
    part.requirements = {NAME: PassedTest(level, always=always, after_repair=after_repair)}
    return part


class Gated(ActiveTests):
    """Active tests, and the test before a return."""

    def __init__(self, level: Level, site: Site, service: Service, clock: Clock) -> None:
        super().__init__(service, clock)
        self._service = service
        test = site.config.of(ActiveTestOptions)
        self._gate = ReturnGate(
            GateOptions(socket=test.gate_socket, within=test.gate_timeout, turn=_turn(site, test)),
            append=lambda events, step: service.journal.append(events, step=step),
            gate=lambda: gate_of(service.enforcement.state),
            level=lambda: level_of(service.enforcement.state, level),
            could_test=lambda: memory_of(service.engine.state).able,
            gpus=lambda: service.verdict.gpus,
            changed=service.request_step,
            committed=service.ledger.commit,  # the ledger is there by now
            boot_id=site.boot_id,
            clock=clock,
        )
        self._leases.cut_short = self._gate.cut_short

    def run(self) -> None:
        self._gate.start()

    async def stop(self) -> None:
        await super().stop()
        await self._gate.stop()

    def seen(self, situation: Situation, now: Stamp) -> Situation:
        nvml, lease = self._service.engine.view.nvml.facts, memory_of(self._service.engine.state).lease
        sees = Sees(
            run=self._gate.run,
            testing=lease is not None and lease.holds(now),
            gpus_used=nvml is None or any(gpu.processes for gpu in nvml.gpus),
        )
        return replace(situation, features={**situation.features, NAME: sees})

    def step(self) -> None:
        assessed = self._service.enforcement.answers.get(NAME)
        self._gate.step(assessed if isinstance(assessed, Assessed) else None)

    def shown(self, snapshot: Snapshot, _: Stamp) -> Snapshot:
        mine = replace(of(snapshot), gate=self._gate.shown())
        return replace(snapshot, features={**snapshot.features, NAME: mine})


def _turn(site: Site, test: ActiveTestOptions) -> Turn | None:
    """Return the turn that limits through Slurm how many nodes are tested at once; None without Slurm: no limit."""
    if site.slurm is None:
        return None
    return gate_turn(
        site.slurm,
        site.config.slurm,
        at_once=test.at_once,
        slurm_user=test.slurm_user,
        lasts=test.gate_timeout + PROBE_AND_START,
        pause=site.config.breaker.recount_after,
    )


def gate_turn(
    client: SlurmClient, slurm: SlurmOptions, *, at_once: int, slurm_user: str, lasts: float, pause: float
) -> FleetTurn:
    """Return the turn of this node. `at_once`: most nodes under test. `slurm_user`: the user whose test jobs also
    count. `lasts`: most seconds of a test. `pause`: seconds between writing the mark and the second count, at least
    one.
    """

    async def refused(commands: Commands, name: str) -> str:
        testers = await read_testers(commands, slurm_user, time.time())
        return refusal(at_once, testers.held, name)

    turn = TurnOptions(what=TEST, done="tested", lasts=lasts, pause=pause)
    return FleetTurn(client, slurm, turn, refused)
