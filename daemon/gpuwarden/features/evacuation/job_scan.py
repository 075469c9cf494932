"""Scans the jobs of this node: the processes of the host, and Slurm's answer about their jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import replace

from gpuwarden.base.threads import detached
from gpuwarden.features.evacuation.acknowledge import Membership
from gpuwarden.features.evacuation.policy.delivery import Process
from gpuwarden.features.evacuation.policy.model import key_of
from gpuwarden.features.evacuation.policy.plan import Seen
from gpuwarden.features.evacuation.slurm.job_scan import SlurmJobs, SlurmJobScan
from gpuwarden.features.evacuation.slurm.pids import Listed
from gpuwarden_collectors.base import CollectorError
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.receivers.facts import Kind, LocalJob, Role
from gpuwarden_collectors.receivers.reader import ReceiversReader

NEW_EVERY = 1.0
"""Seconds between two scans for an unknown process, since any process may connect."""
SCANNED_WITHIN = 3.0
"""Seconds for all processes of the host; 2,000 take some tens of milliseconds."""
AT_ONCE = 0.1
"""Seconds that containers wait for Slurm, which does not concern them; an idle Slurm answers within 20 ms."""

Early = Callable[[Seen], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scanned:
    """The result of a scan. `seen` is None if the processes of this host could not be read. `listed` False: slurmd does
    not answer, so that jobs which only slurmd lists may be missing. `error` is for people, empty if all answered.
    """

    seen: Seen | None
    listed: bool = True
    error: str = ""


@dataclass(frozen=True, slots=True)
class _Read:
    """The result of one read. `as_of`: loop time of slurmd's list of the jobs or, without Slurm, of the scan."""

    jobs: tuple[LocalJob, ...]
    as_of: float


class JobScan:
    """Scans the jobs of this host. `slurm` is None where there is none. `gpu_pids`: the processes that hold a GPU, as
    NVML last listed them.
    """

    def __init__(
        self, reader: ReceiversReader, slurm: SlurmJobScan | None, gpu_pids: Callable[[], Collection[int]]
    ) -> None:
        self.slurm = slurm
        self._reader = reader
        self._gpu_pids = gpu_pids
        self._owners: Mapping[int, int] = {}
        self._reading: asyncio.Future[_Read] | None = None
        self._members: dict[Process, Membership] = {}
        self._as_of = float("-inf")
        self._rescan: asyncio.Task[None] | None = None
        self._rescan_began = float("-inf")

    async def close(self) -> None:
        if self._rescan is not None:
            self._rescan.cancel()
            await asyncio.gather(self._rescan, return_exceptions=True)
        if self.slurm is not None:
            await self.slurm.close()

    async def scan(self, early: Early) -> Scanned:
        """Scan all jobs in SCANNED_WITHIN and half a second at most. `early` gets the containers if Slurm is slow."""
        if self.slurm is None:
            jobs, error = await self._scan(await self._listed())
            return Scanned(seen=None if jobs is None else Seen(jobs=jobs), error=error)
        reading, listing = asyncio.create_task(self.slurm.read()), asyncio.create_task(self._listed())
        try:
            if (await asyncio.wait((reading, listing), timeout=AT_ONCE))[1]:
                await self._containers(early)
            listed = await listing
            jobs, error = await self._scan(listed)
            answer = await reading
        finally:
            reading.cancel()
            listing.cancel()
        if answer.answered:
            self._owners = {number: job.uid for number, job in answer.jobs.items()}
        if any(job.kind is Kind.SLURM and job.id not in map(str, answer.jobs) for job in jobs or ()):
            self.slurm.ask_again()
        error = "; ".join(filter(None, (error, listed.error, answer.error)))
        return Scanned(
            seen=None if jobs is None else _seen(jobs, answer, self.slurm.node), listed=not listed.error, error=error
        )

    async def _listed(self) -> Listed:
        return self._known() if self.slurm is None else await self.slurm.pids.listed()

    def _known(self) -> Listed:
        """Return slurmd's last list without a new query. Without Slurm it is empty and up to date."""
        return Listed(as_of=asyncio.get_running_loop().time()) if self.slurm is None else self.slurm.pids.last

    async def _containers(self, early: Early) -> None:
        """Report containers early. Other processes wait for slurmd, which may list them as part of a job."""
        if self._reading is not None:  # a read for a caller's job is in progress, with slurmd's list
            return
        jobs, _ = await self._scan(self._known())
        containers = tuple(job for job in jobs or () if job.kind is Kind.CONTAINER)
        if containers:
            await early(Seen(jobs=containers))

    async def warm(self) -> None:
        """Read the processes of this host, so that the next scan takes a third of the time. Slurm is not queried."""
        await self._scan(self._known())

    async def membership_of(self, process: Process) -> Membership | None:
        """Return the job that a process belongs to, and its role in it; None if it belongs to none. For a new process
        the host is scanned again, once a second at most; concurrent callers share that scan, and wait for another one
        if slurmd did not list for it.

        There is no time limit: the caller sets one.
        """
        asked = asyncio.get_running_loop().time()
        while (membership := self._members.get(process)) is None and self._as_of < asked:
            if self._rescan is None or self._rescan.done():
                self._rescan = asyncio.create_task(self._scan_again())
            await asyncio.shield(self._rescan)
        return membership

    async def _scan_again(self) -> None:
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(max(self._rescan_began + NEW_EVERY - clock(), 0.0))
        self._rescan_began = clock()
        await self._scan(await self._listed())

    async def _scan(self, listed: Listed) -> tuple[tuple[LocalJob, ...] | None, str]:
        """Return all jobs here, or why they cannot be read. A scan that hangs is left to its thread, and no other
        starts meanwhile.

        The result of a scan in progress is used if it began with a list that is as new.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + SCANNED_WITHIN
        while True:
            if self._reading is None:
                self._reading = self._begin(listed)
            reading = self._reading
            await asyncio.wait((reading,), timeout=max(until - loop.time(), 0.0))
            if not reading.done():
                return None, f"the processes of this host could not be read within {SCANNED_WITHIN:g} s"
            if self._reading is reading:  # otherwise a concurrent caller has begun the next one
                self._reading = None
            try:
                read = reading.result()
            except CollectorError as error:
                return None, str(error)
            self._remember(read)
            if read.as_of >= listed.as_of:
                return read.jobs, ""

    def _begin(self, listed: Listed) -> asyncio.Future[_Read]:
        pids, owners = frozenset(self._gpu_pids()), self._owners
        return detached("receivers", lambda: _Read(self._reader.read(pids, listed.still_there(), owners), listed.as_of))

    def _remember(self, read: _Read) -> None:
        """Remember which job each process belongs to. Without a newer list of slurmd, a new process may be a rank
        although it seems to belong to no job: of such processes only those known before are kept.
        """
        members = _members(read.jobs)
        if read.as_of <= self._as_of:
            single = _members(job for job in read.jobs if job.kind is Kind.PROCESS)
            before = {process: self._members[process] for process in single if process in self._members}
            members = {process: member for process, member in members.items() if process not in single} | before
        self._members, self._as_of = members, max(self._as_of, read.as_of)


def _members(jobs: Iterable[LocalJob]) -> dict[Process, Membership]:
    return {
        (process.pid, process.started): Membership(key_of(job), job.uid, is_rank=process.role is Role.RANK)
        for job in jobs
        for process in job.processes
    }


def _seen(jobs: tuple[LocalJob, ...], answer: SlurmJobs, node: str) -> Seen:
    return Seen(
        jobs=jobs,
        slurm=answer.jobs,
        controller=answer.answered,
        unanswered=answer.unanswered,
        fresh=answer.fresh,
        trees=answer.trees,
        node=node,
    )


def on_gpu(seen: Seen, pids: Collection[int]) -> Seen:
    """Limit the concerned jobs to those with a process on this GPU. Their other processes still belong to them."""
    there = (job for job in seen.jobs if any(process.pid in pids for process in job.processes))
    return replace(seen, concerned=frozenset(map(key_of, there)))
