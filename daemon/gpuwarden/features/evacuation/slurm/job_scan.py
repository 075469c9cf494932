"""Slurm's answer about the jobs on this node while its end is imminent; a controller that hangs delays nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path

from gpuwarden.features.evacuation.slurm.pids import SlurmPids
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.slurm import departing
from gpuwarden_collectors.slurm.client import SlurmClient
from gpuwarden_collectors.slurm.command_record import CommandRecords
from gpuwarden_collectors.slurm.departing_facts import SlurmJob
from gpuwarden_collectors.slurm.errors import SlurmError

CONTROLLER_WITHIN = 1.0
"""Seconds that signalling waits for the controller; an idle one answers within 20 ms. Without it a job is signalled on this host only."""
KEPT_FOR = 5.0
"""Seconds for which an answer of the controller is used again: a cloud may reclaim a hundred nodes at once, and each
scans every second."""
TREES_WITHIN = 0.3
"""Seconds that the jobs wait for the answer about process tracking, whose command also pings every controller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJobs:
    """The controller's jobs on this node. `answered`: it has answered, within CONTROLLER_WITHIN; `fresh`: to this
    query. `error`: why there is no answer. `unanswered`: seconds for which a query of it is open; None: none is.
    """

    jobs: Mapping[int, SlurmJob] = field(default_factory=dict)
    answered: bool = False
    fresh: bool = False
    trees: bool | None = None
    error: str = ""
    unanswered: float | None = None


class SlurmJobScan:
    """Queries Slurm for the jobs of this node. `conf`: slurm.conf on this host, if there is one. An answer that is late
    is waited for in the next scan.

    `pids`: slurmd's list. `sending`: commands for signals, which wait for no query; `records`: records of signals, in
    `record_folder`. The owner of `client` closes it.
    """

    def __init__(self, client: SlurmClient, record_folder: Path, conf: Path | None = None) -> None:
        self.commands = client.evacuation
        self.sending = client.signals
        self.records = CommandRecords(record_folder)
        self.pids = SlurmPids(client.listing)
        self._name = client.node
        self._conf = conf
        self._trees: bool | None = None
        self._trees_known = False
        self._trees_asked: asyncio.Task[None] | None = None
        self._asked: asyncio.Task[dict[int, SlurmJob]] | None = None
        self._asked_at = 0.0
        self._kept: SlurmJobs | None = None
        self._kept_until = 0.0
        self._chance = random.Random()  # noqa: S311 - spreads load, guards nothing

    @property
    def node(self) -> str:
        """Slurm's name of this host; empty until it is found."""
        return self._name.known

    async def close(self) -> None:
        """Stop all queries that are still unanswered."""
        for task in filter(None, (self._asked, self._trees_asked)):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self.pids.close()

    async def read(self) -> SlurmJobs:
        """Read the jobs from the controller. Takes CONTROLLER_WITHIN at most, and raises nothing."""
        now = asyncio.get_running_loop().time()
        if self._kept is not None and now < self._kept_until:
            return replace(self._kept, fresh=False, trees=self._trees)
        asks = self._asked is None
        if self._asked is None:
            self._asked, self._asked_at = asyncio.create_task(self._ask()), now
        await asyncio.wait((self._asked,), timeout=CONTROLLER_WITHIN)
        if not self._asked.done():
            unanswered = asyncio.get_running_loop().time() - self._asked_at
            text = f"slurmctld has not answered for {CONTROLLER_WITHIN:g} s"
            return SlurmJobs(trees=self._trees, error=text, unanswered=unanswered)
        asked, self._asked, self._kept = self._asked, None, None
        try:
            self._kept = SlurmJobs(jobs=asked.result(), answered=True, fresh=asks, trees=self._trees)
        except SlurmError as error:
            return SlurmJobs(trees=self._trees, error=str(error))
        self._kept_until = now + KEPT_FOR * self._chance.uniform(0.8, 1.2)
        return self._kept

    def ask_again(self) -> None:
        """Make the next read query the controller: a local job is missing from its last answer, or a fresh answer is
        required.
        """
        self._kept = None

    async def _ask(self) -> dict[int, SlurmJob]:
        """Query the controller for the jobs, by number. Raises SlurmError."""
        node = await self.commands.node_name()
        if not self._trees_known and self._trees_asked is None:
            self._trees_asked = asyncio.create_task(self._learn_trees())
        jobs = await departing.read_jobs(self.commands, node)
        if self._trees_asked is not None:
            await asyncio.wait((self._trees_asked,), timeout=TREES_WITHIN)
        return jobs

    async def _learn_trees(self) -> None:
        """Query how processes are tracked, once. After an error the next query for the jobs repeats it."""
        try:
            self._trees = await departing.signals_whole_trees(self.commands, self._conf)
            self._trees_known = True
        except SlurmError:
            pass
        finally:
            self._trees_asked = None
