"""Repairs as a part of the daemon: `gpuwarden repair`, and the steps that are allowed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from gpuwarden.config.model import Config
from gpuwarden.features.repair.asked import Asking
from gpuwarden.features.repair.budget import fleet_turn
from gpuwarden.features.repair.memory import NAME, memory_of
from gpuwarden.features.repair.model import Ended, Outcome
from gpuwarden.features.repair.options import RepairOptions
from gpuwarden.features.repair.plan import Plan, of_case
from gpuwarden.features.repair.preconditions import OBSERVED_WITHOUT, Obstacle, next_of, obstacles, settles
from gpuwarden.features.repair.readings import expected, unwell
from gpuwarden.features.repair.requirement import ReadWell, Seen
from gpuwarden.features.repair.runner import Hands, Runner
from gpuwarden.features.repair.scene import Sight
from gpuwarden.features.repair.shown import TRIES_SHOWN, Shown
from gpuwarden.health.event_data import write
from gpuwarden.health.model import Event, EventKind
from gpuwarden.policy.situation import Situation
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden.publish.sockets.control import Verb
from gpuwarden.runtime.part import Part, Service
from gpuwarden.runtime.wiring import Site
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.facts import Stamp

READ_WITHIN = 30.0
"""Seconds for the schedulers to be read right before a step."""
POLL = 0.2


class Repairs(Part):
    """Answers `gpuwarden repair --dry-run`; runs steps only in mode enforce, and only if some are allowed."""

    _runner: Runner | None = None

    def __init__(self, site: Site, service: Service, clock: Clock) -> None:
        options = site.config.of(RepairOptions)
        self._service = service
        self._site = site
        self._options = options
        self._clock = clock
        self._enforce = site.config.mode == "enforce"
        alone = site.slurm is None
        self._sight = Sight(
            service, options, enforce=self._enforce, bundles=_bundles(site.config), alone=alone, clock=clock
        )
        self._next: Plan | None = None
        self._barred: tuple[Obstacle, ...] = ()
        self._person: Plan | None = None
        if options.steps and self._enforce:
            self.requirements = {NAME: ReadWell()}

    def verbs(self) -> Mapping[str, Verb]:
        return Asking(self._sight, self._order).verbs()

    def _order(self, planned: Plan, by: str) -> str:
        return "this daemon has not started yet" if self._runner is None else self._runner.order(planned, by)

    # --- life

    def run(self) -> None:
        site, service = self._site, self._service
        if not self._options.steps or not self._enforce or site.simulation is not None:
            return
        turn = None
        if site.slurm is not None:
            pause = site.config.breaker.recount_after
            turn = fleet_turn(site.slurm, site.config.slurm, self._options, pause, self._clock)
        hands = Hands(
            append=lambda events, step: service.journal.append(events, step=step),
            committed=service.ledger.commit,
            saved=service.saved,
            afresh=self._afresh,
            off_the_gpus=service.readers.off_the_gpus,
            changed=service.request_step,
            turn=turn,
        )
        memory = lambda: memory_of(service.engine.state)  # noqa: E731 - asked anew each time
        self._runner = Runner(self._options.socket, self._sight, hands, memory, boot_id=site.boot_id, clock=self._clock)
        if service.journal.recalled:
            self._runner.step(None)  # before any pass over the GPUs, settles what an earlier daemon began

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.stop()

    async def _afresh(self) -> bool:
        """Have all schedulers read now. Returns whether all were within READ_WITHIN."""
        asked, loop = self._clock(), asyncio.get_running_loop()
        until, enforcement = loop.time() + READ_WITHIN, self._service.enforcement
        enforcement.hurry()
        while any(state.at.boottime < asked.boottime for state in enforcement.node_states.values()):
            if loop.time() > until:
                return False
            await asyncio.sleep(POLL)
        return True

    # --- a step

    def seen(self, situation: Situation, now: Stamp) -> Situation:  # noqa: ARG002 - what was read has its own time
        if not self.requirements:
            return situation
        state, verdict = self._service.engine.state, situation.verdict
        well = Seen(unwell(verdict, self._service.engine.view.nvml.facts, state.pins), expected(verdict))
        return replace(situation, features={**situation.features, NAME: well})

    def step(self) -> None:
        if not self._options.steps:
            return
        plans = self._sight.plans()
        scene = self._sight.scene()
        by_step = [(plan, obstacles(scene, plan)) for plan in plans]
        self._person = next((plan for plan in plans if plan.gave_up), None)
        self._next = next_of(by_step)
        self._barred = next((barred for plan, barred in by_step if plan is self._next), ())
        if self._runner is not None and self._service.journal.recalled:
            self._runner.step(None if self._barred else self._next)
        elif not self._enforce and self._next is not None:
            self._observe(self._next)

    def _observe(self, planned: Plan) -> None:
        """Record, once within a day, the step that mode observe does not take."""
        if planned.step is None or any(obstacle.precondition not in OBSERVED_WITHOUT for obstacle in self._barred):
            return
        now, memory = self._clock(), memory_of(self._service.engine.state)
        lately = of_case(memory, planned.board, planned.finding.key, now)
        if any(attempt.outcome is Outcome.OBSERVED for attempt in lately):
            return
        over = Ended(
            id=f"{planned.finding.key}:{now.wall:.0f}",
            step=planned.step.kind,
            outcome=Outcome.OBSERVED,
            text=str(planned.step),
            board=planned.board,
            at=now,
            boot_id=self._site.boot_id,
        )
        key, boot_id = planned.finding.key, self._site.boot_id
        event = Event(kind=EventKind.REPAIR_ENDED, at=now, boot_id=boot_id, key=key, data=write(over))
        self._service.journal.append([event])

    # --- what is published

    def shown(self, snapshot: Snapshot, now: Stamp) -> Snapshot:  # noqa: ARG002 - it is of the last step
        memory = memory_of(self._service.engine.state)
        mine = replace(
            self._shown(), allowed=self._options.steps, tries=memory.tries[-TRIES_SHOWN:], counts=memory.counts
        )
        return replace(snapshot, features={**snapshot.features, NAME: mine})

    def _shown(self) -> Shown:
        running = memory_of(self._service.engine.state).open
        if running is not None:
            return Shown(state="running", finding=running.finding, step=str(running.what))
        planned = self._next
        if planned is not None and planned.step is not None:
            barred = self._barred or (() if self._runner is None else self._runner.barred)
            text = "; ".join(obstacle.text for obstacle in barred) or "it begins"
            return Shown(
                state="waiting",
                finding=str(planned.finding.key),
                step=str(planned.step),
                text=text,
                forbidden_by=barred,
            )
        if self._person is not None:
            settling = settles(memory_of(self._service.engine.state), self._clock().wall)
            state, text = ("waiting", settling) if settling else ("person", self._person.why)
            return Shown(state=state, finding=str(self._person.finding.key), text=text)
        return Shown()


def _bundles(config: Config) -> bool:
    """Return whether a bundle is made for each failure: a key of another feature, which may not be imported."""
    return bool(getattr(getattr(config, "bundle", None), "on_failure", False))


def part(site: Site, service: Service, clock: Clock) -> Part:
    return Repairs(site, service, clock)
