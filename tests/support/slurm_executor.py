"""What carries out the steps of an evacuation, beside a real Slurm and without a daemon around it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path

from gpuwarden.features.evacuation.acknowledgements import Acknowledgements
from gpuwarden.features.evacuation.executor import Executor
from gpuwarden.features.evacuation.policy import events
from gpuwarden.features.evacuation.policy.model import EvacuationState
from gpuwarden.features.evacuation.policy.state import fold
from gpuwarden.features.evacuation.policy.steps import Step
from gpuwarden.features.evacuation.slurm.job_scan import SlurmJobScan
from gpuwarden.health.model import Event, EventKind
from gpuwarden.policy.model import Notice
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.slurm.client import SlurmClient
from support.evacuations import BOOT, stamp
from support.slurm import PATIENCE, Slurm
from support.slurm_hanging import HangingCommands

OWN_REASON = "gpuwarden: termination boot=1b4e28ba instance=i-0af01c23"


class ExecutorRig:
    """The executor of node n1, whose commands wait where they are held; `state` is the fold of what it has appended."""

    def __init__(self, slurm: Slurm, folder: Path, *, now: Stamp) -> None:
        self.now = now
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
        return self.now

    async def _committed(self) -> bool:
        return True

    def append(self, events: Iterable[Event]) -> None:
        for event in events:
            self.written.append(event)
            self.state = fold(self.state, event)

    def announces(self, *notices: Notice) -> None:
        self.append(events.follow(self.state, notices, boot_id=BOOT, now=stamp(1_000.0)))

    async def carries_out(self, notice: Notice, step: Step, *, held: str, then: Sequence[Notice]) -> None:
        """Carry out the step. The announced notices change to `then` while it waits for the command that `held` names."""
        self.commands.hold(held)
        self.executor.begin([(notice, step)], OWN_REASON)
        async with asyncio.timeout(PATIENCE):
            while not self.commands.hanging:
                await asyncio.sleep(0.01)
            self.announces(*then)
            self.commands.release()
            await asyncio.gather(*self.executor.running)
