"""Health, policy and evacuation on one journal with a ledger on disk, as the daemon puts them together; no process, no socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from pathlib import Path

from gpuwarden.engine.enforcement import Enforcement
from gpuwarden.engine.engine import Engine
from gpuwarden.engine.journal import Journal, Step
from gpuwarden.features.active_test.gate.requirement import PassedTest
from gpuwarden.features.active_test.memory import NAME
from gpuwarden.features.evacuation.acknowledgements import Acknowledgements
from gpuwarden.features.evacuation.active_notices import ActiveNotices, active_notices
from gpuwarden.features.evacuation.driver import Evacuation
from gpuwarden.features.evacuation.job_scan import JobScan
from gpuwarden.features.evacuation.policy import model as evacuation_model
from gpuwarden.features.evacuation.policy import state as evacuation
from gpuwarden.features.evacuation.policy.plan import EvacuationSettings
from gpuwarden.health import state as health
from gpuwarden.health.model import Event
from gpuwarden.ledger.ledger import Ledger
from gpuwarden.ledger.reader import read_only
from gpuwarden.policy import state as policy
from gpuwarden.policy.fold import fold as fold_policy
from gpuwarden.policy.situation import Situation
from gpuwarden_collectors.active_test.level import Level
from gpuwarden_collectors.event_facts import HostEvent, LogPosition
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.receivers.reader import ReceiversReader
from support.enforcement_rig import rig_options
from support.hosts import Host
from support.ledgers import HERE, PATIENCE
from support.schedulers import Client, Cluster, Node

States = tuple[object, policy.PolicyState, evacuation_model.EvacuationState]

REQUIREMENTS = {NAME: PassedTest(Level.QUICK)}


def durable(state: health.State) -> object:
    """Return the part of the judge's memory that a restart must not change."""
    tracks = {
        str(t.key): (t.severity, t.advice, t.latch, t.first_seen, t.raised, t.latched, t.released is None, t.counters)
        for t in state.tracks.values()
    }
    records = {str(r.key): replace(r, batch=0) for r in state.records.values()}
    boards = (
        dict(state.raises),
        dict(state.repairs),
        dict(state.lemons),
        dict(state.remaps),
        dict(state.links),
        dict(state.port_downs),
        state.host,
        {name: memory for name, memory in state.features.items() if memory != health.MEMORIES[name].EMPTY},
    )
    return tracks, records, dict(state.pins), boards, state.health, state.boot_id


def folded(events: Iterable[Event]) -> States:
    """Return the three states after these events, each without the parts that no event carries."""
    past = tuple(events)
    return compared(
        reduce(health.fold, past, health.State()),
        reduce(fold_policy, past, policy.PolicyState(requirements=REQUIREMENTS)),
        reduce(evacuation.fold, past, evacuation_model.EvacuationState()),
    )


def compared(judged: health.State, decided: policy.PolicyState, leaving: evacuation_model.EvacuationState) -> States:
    momentary = replace(decided, clean=0, clean_since=None, sequence=0, unknown_since=None, foreign=frozenset())
    return durable(judged), momentary, leaving


class WholeNode:
    """`host` is what its collectors find. `begin` and `kill` are the life of one daemon; the ledger at `path` outlives it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "ledger.db"
        self.folder = folder
        self.host = Host(2)
        self.cluster = Cluster(lambda: self.host.now.wall, {"n1": Node()})
        self.written = 0
        """Lines of the kernel log so far."""
        self.order: list[str] = []
        """`step` for each step, `scan` for each scan of the jobs that was begun."""

    async def begin(self, opens_within: float = PATIENCE, meanwhile: Callable[[], None] = lambda: None) -> None:
        """`meanwhile` is called before the ledger was read."""
        host, self._loop = self.host, asyncio.get_running_loop()
        self._step_due: asyncio.Handle | None = None
        self._judging = False
        self.ledger = Ledger(self.path, machine=HERE, boot_id=host.boot_id, clock=lambda: host.now)
        self.journal = Journal(self.ledger, request_step=self._request, clock=lambda: host.now)
        self.engine = Engine(host.boot_id, host.rules)
        self.enforcement = Enforcement(
            [Client(self.cluster, "n1", lambda: host.now)], rig_options(), append=self.journal.append,
            changed=lambda: self._request(Step.SOON), committed=lambda: self.ledger.flush(PATIENCE), boot_id=host.boot_id,
            clock=lambda: host.now, requirements=REQUIREMENTS,
        )  # fmt: skip
        self.departing = Evacuation(
            EvacuationSettings(), JobScan(ReceiversReader(self.folder), None, self._gpu_pids),
            Acknowledgements(self.folder, self.folder, boot_id=host.boot_id, clock=lambda: host.now),
            active=self._active, enforce=True, append=self.append_soon, write=self.journal.append,
            committed=lambda: self.ledger.flush(PATIENCE), names=False, boot_id=host.boot_id, clock=lambda: host.now,
        )  # fmt: skip
        self.journal.projections = (self.engine, self.enforcement, self.departing)
        self.journal.outputs = (self.departing.appended,)
        meanwhile()
        memory = await self.ledger.open(opens_within)
        if memory is not None:
            self.journal.recall(memory)
        self._judging = True
        self.step()
        self.enforcement.run()
        self.departing.run()

    async def kill(self) -> None:
        """Kill the daemon. Events that are not on the disk yet may be lost."""
        if self._step_due is not None:
            self._step_due.cancel()
        await self.departing.stop()
        await self.enforcement.stop(PATIENCE)
        await self.ledger.close(PATIENCE)

    def append(self, events: Iterable[Event]) -> None:
        self.journal.append(events, step=Step.NOW)

    def append_soon(self, events: Iterable[Event]) -> None:
        self.journal.append(events, step=Step.SOON)

    def _request(self, when: Step) -> None:
        if not self._judging:
            return
        if when is Step.NOW:
            self.step()
        elif self._step_due is None:
            self._step_due = self._loop.call_soon(self.step)

    def step(self, *host_events: HostEvent) -> None:
        """A pass of the collectors and the step that follows from it, as `runtime/app.py` makes it."""
        if self._step_due is not None:
            self._step_due.cancel()
            self._step_due = None
        if (memory := self.ledger.recall()) is not None:
            self.journal.recall(memory, late=True)
        self.order.append("step")
        host = self.host
        host.uptime += 5.0
        self.engine.observed(host.nvml())
        self.engine.observed(host.pci())
        self.engine.ingest(host_events, host.now)
        self.written += len(host_events)
        step = self.engine.step(host.now)
        self.verdict = step.verdict
        self.journal.append(step.events, by=self.engine, position=LogPosition(host.boot_id, self.written))
        situation = Situation(
            verdict=self.verdict, sequence=self.engine.sequence, ready=True, boot_id=host.boot_id, instance="i-1",
            remembered=self.journal.recalled,
        )  # fmt: skip
        self.journal.append(self.enforcement.step(situation, host.now), by=self.enforcement)
        self.departing.follow()
        self.journal.tend()
        self.enforcement.carry_out()

    def _gpu_pids(self) -> set[int]:
        self.order.append("scan")
        return set()

    def _active(self, now: Stamp) -> ActiveNotices:
        return active_notices(
            self.enforcement.state, self.verdict, self.enforcement.node_states, {}, going_on=self.departing.current(), slurm=True, excludes=True,
            ignore_gpus=False, horizon=3_600.0, instance="i-1", now=now,
        )  # fmt: skip

    # --- what is compared

    async def recalled(self) -> None:
        """Wait until the ledger's contents are part of the state."""
        async with asyncio.timeout(PATIENCE):
            while not self.journal.recalled:
                await self.ledger.flush(0.1)
                self.step()

    @property
    def live(self) -> States:
        return compared(self.engine.state, self.enforcement.state, self.departing.state)

    async def on_disk(self) -> States:
        """The fold of the ledger, as the next start will read it."""
        while self.ledger.unwritten:  # an outcome may come in meanwhile
            assert await self.ledger.flush(PATIENCE)
        with read_only(self.path) as reader:
            return folded(reader.memory().events)

    async def orders(self, text: str) -> None:
        """`exclude` or `restore` by an operator, and what came of it."""
        with suppress(ValueError):
            if text == "exclude":
                await self.enforcement.orders.exclude("root", "to be inspected")
            else:
                await self.enforcement.orders.restore("root", self.verdict, force=text == "override")
