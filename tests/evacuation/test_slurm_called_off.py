"""A notice that is called off while Slurm is asked about a job or the node: neither is touched any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path

import pytest

from gpuwarden.evacuation.acknowledgements import Acknowledgements
from gpuwarden.evacuation.executor import Executor
from gpuwarden.evacuation.slurm_job_scan import SlurmJobScan
from gpuwarden.health.model import Event, EventKind
from gpuwarden.policy.evacuation import events
from gpuwarden.policy.evacuation.budget import FAILING_GPU
from gpuwarden.policy.evacuation.model import EvacuationState
from gpuwarden.policy.evacuation.plan import Requeue, SetFinalState, Step
from gpuwarden.policy.evacuation.state import fold
from gpuwarden.policy.model import Notice
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.slurm.client import SlurmClient
from support.evacuations import BOOT, announced, stamp
from support.slurm import SLURM, Slurm
from support.slurm_hanging import HangingCommands
from support.slurm_ranks import the_job

pytestmark = SLURM

PATIENCE = 60.0
OWN_REASON = "gpuwarden: termination boot=1b4e28ba instance=i-0af01c23"
GPU_3 = announced(None, source="gpu-3", kind=FAILING_GPU)
GPU_5 = announced(None, source="gpu-5", kind=FAILING_GPU)
SPOT, LATER = announced(120.0), announced(120.0 + 400.0)
OTHER = announced(500.0, source="operator")
IN_THE_LAST_SECOND = stamp(1_119.0)
"""Of SPOT."""


class Rig:
    """The executor of node n1, whose commands wait where they are held; `state` is the fold of what it has appended."""

    def __init__(self, slurm: Slurm, folder: Path) -> None:
        self.commands = HangingCommands(folder / "commands")
        self.client = SlurmClient(node="n1", conf=slurm.conf, folder=self.commands.folder, timeout=10 * PATIENCE)
        self.state = fold(EvacuationState(), Event(kind=EventKind.BOOT, at=self.clock(), boot_id=BOOT))
        self.written: list[Event] = []
        self.executor = Executor(
            lambda: self.state, self.append, self.append, wake=lambda: None, committed=self._committed,
            acknowledgements=Acknowledgements(folder / "run", Path("/proc"), boot_id=BOOT, clock=self.clock),
            slurm=SlurmJobScan(self.client, folder / "signals"), approval=None, boot_id=BOOT, clock=self.clock,
        )  # fmt: skip

    def clock(self) -> Stamp:
        return IN_THE_LAST_SECOND

    async def _committed(self) -> bool:
        return True

    def append(self, events: Iterable[Event]) -> None:
        for event in events:
            self.written.append(event)
            self.state = fold(self.state, event)

    def announces(self, *notices: Notice) -> None:
        self.append(events.follow(self.state, notices, boot_id=BOOT, now=stamp(1_000.0)))

    async def carries_out(self, notice: Notice, step: Step, *, held: str, then: Sequence[Notice]) -> None:
        """What is announced changes to `then` while it waits for the command that `held` names."""
        self.commands.hold(held)
        self.executor.begin([(notice, step)], OWN_REASON)
        async with asyncio.timeout(PATIENCE):
            while not self.commands.hanging:
                await asyncio.sleep(0.01)
            self.announces(*then)
            self.commands.release()
            await asyncio.gather(*self.executor.running)


@pytest.fixture
async def rig(slurm: Slurm, tmp_path: Path) -> AsyncIterator[Rig]:
    rig = Rig(slurm, tmp_path)
    yield rig
    await rig.client.close()


READS_NODE = "^sinfo .*--nodes="


@pytest.mark.parametrize(
    ("before", "then", "requeued"),
    [
        ((SPOT,), (), False),
        ((SPOT, OTHER), (OTHER,), True),
        ((GPU_3, GPU_5), (GPU_5,), False),
        ((GPU_3, SPOT), (SPOT,), False),
        ((GPU_3, GPU_5), (GPU_3,), True),
    ],
    ids=["called off", "another announces the same end", "another GPU still fails", "the machine still ends", "its GPU still fails"],
)  # fmt: skip
async def test_a_job_is_requeued_only_if_its_notice_stands_right_before_that(
    slurm: Slurm, rig: Rig, before: tuple[Notice, ...], then: tuple[Notice, ...], requeued: bool
) -> None:
    number = slurm.submit("sleep 300", "-N1")
    slurm.wait(lambda: slurm.job_state(number) == "RUNNING", "the job")
    node = slurm.job(number)["NodeList"]
    rig.client.node.known = node
    job = await the_job(rig.client.routine, number, node)
    slurm.drain(node, OWN_REASON)
    rig.announces(*before)
    await rig.carries_out(before[0], Requeue(f"slurm/{number}", job), held=READS_NODE, then=then)
    assert slurm.job(number).get("Restarts", "0") == str(int(requeued))
    assert (EventKind.REQUEUED in [event.kind for event in rig.written]) == requeued
    assert EventKind.NOT_REQUEUED not in [event.kind for event in rig.written]


@pytest.mark.parametrize(
    ("then", "down"),
    [((), False), ((OTHER,), False), ((LATER, OTHER), False), ((SPOT,), True)],
    ids=["called off", "another is farther away", "moved away", "stands"],
)
async def test_the_node_is_set_down_only_if_that_very_end_stands_right_before_that(
    slurm: Slurm, rig: Rig, then: tuple[Notice, ...], down: bool
) -> None:
    slurm.drain("n1", OWN_REASON)
    rig.announces(SPOT, OTHER)
    await rig.carries_out(SPOT, SetFinalState("down"), held=READS_NODE, then=then)
    assert ("DOWN" in slurm.state("n1")) == down
    assert (EventKind.LAST_WORDS in [event.kind for event in rig.written]) == down
