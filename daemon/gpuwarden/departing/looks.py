"""One look at who is here: the processes of this host, and what Slurm says of the jobs they belong to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from gpuwarden.departing.slurm_looks import SlurmLook, SlurmLooks
from gpuwarden.policy.delivery import Process
from gpuwarden.policy.departure import Seen
from gpuwarden.policy.departure_model import key_of
from gpuwarden.schedule import detached
from gpuwarden_collectors.base import CollectorError
from gpuwarden_collectors.receivers.facts import Kind, LocalJob
from gpuwarden_collectors.receivers.reader import ReceiversReader
from gpuwarden_collectors.slurm.departing_facts import ListedPid

NEW_EVERY = 1.0
"""Seconds between two looks for the sake of somebody who is not known: anybody may ask to be."""
SCANNED_WITHIN = 3.0
"""Seconds for all processes of the host; 2,000 take some tens of milliseconds."""
AT_ONCE = 0.1
"""Seconds that containers wait for Slurm, which has nothing to say of them: a quiet one answers within 20 ms."""

Early = Callable[[Seen], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """`seen` None: the processes of this host could not be read. `trouble` is for people, empty if all answered."""

    seen: Seen | None
    trouble: str = ""


class Looks:
    """`slurm` None: there is none here. `gpu_pids`: the processes that hold a GPU, as NVML last listed them."""

    def __init__(
        self, reader: ReceiversReader, slurm: SlurmLooks | None, gpu_pids: Callable[[], Collection[int]]
    ) -> None:
        self.slurm = slurm
        self._reader = reader
        self._gpu_pids = gpu_pids
        self._owners: Mapping[int, int] = {}
        self._reading: asyncio.Future[tuple[LocalJob, ...]] | None = None
        self._keys: dict[Process, str] = {}
        self._scanned = float("-inf")
        self._early: asyncio.Future[tuple[tuple[LocalJob, ...] | None, str]] | None = None

    async def look(self, early: Early) -> Look:
        """Takes SCANNED_WITHIN and half a second at most. `early` gets the containers, where Slurm takes its time."""
        if self.slurm is None:
            jobs, error = await self._scan({})
            return Look(seen=None if jobs is None else Seen(jobs=jobs), trouble=error)
        asking, listing = asyncio.create_task(self.slurm.look()), asyncio.create_task(self.slurm.pids())
        try:
            if (await asyncio.wait((asking, listing), timeout=AT_ONCE))[1]:
                await self._containers(early)
            jobs, error = await self._scan(await listing)
            told = await asking
        finally:
            asking.cancel()
            listing.cancel()
        if told.answered:
            self._owners = {number: job.uid for number, job in told.jobs.items()}
        if any(job.kind is Kind.SLURM and job.id not in map(str, told.jobs) for job in jobs or ()):
            self.slurm.ask_anew()
        trouble = "; ".join(filter(None, (error, told.trouble)))
        return Look(seen=None if jobs is None else _seen(jobs, told), trouble=trouble)

    async def _containers(self, early: Early) -> None:
        """Of others slurmd may say that they are of a job: what is known of them stays as it is."""
        if self._reading is not None:  # somebody who asks for a key has slurmd's list, too
            return
        self._early = asyncio.ensure_future(self._scan({}, remember=False))
        jobs, _ = await self._early
        self._early = None
        containers = tuple(job for job in jobs or () if job.kind is Kind.CONTAINER)
        self._keys = {**self._keys, **_keys(containers)}
        if containers:
            await early(Seen(jobs=containers))

    async def warm(self) -> None:
        """Look at the processes of this host, so that the next look takes a third of the time. Nobody else is asked."""
        await self._scan({})

    async def key_of(self, process: Process) -> str | None:
        """The job that a process belongs to. For one that is new the host is looked at once more, and once a second at most."""
        now = asyncio.get_running_loop().time()
        if process not in self._keys and now >= self._scanned + NEW_EVERY:
            self._scanned = now
            if self._early is not None:  # without slurmd's list it would take a rank for a lone process
                await asyncio.wait((self._early,))
            await self._scan({} if self.slurm is None else await self.slurm.pids())
        return self._keys.get(process)

    async def _scan(
        self, listed: Mapping[int, ListedPid], *, remember: bool = True
    ) -> tuple[tuple[LocalJob, ...] | None, str]:
        """All jobs here, or why they cannot be told. A scan that hangs is left to its thread, and no other begun beside it."""
        if self._reading is None:
            pids, owners = frozenset(self._gpu_pids()), self._owners
            self._reading = detached("receivers", lambda: self._reader.read(pids, listed, owners))
        reading = self._reading
        await asyncio.wait((reading,), timeout=SCANNED_WITHIN)
        if not reading.done():
            return None, f"the processes of this host could not be read within {SCANNED_WITHIN:g} s"
        if self._reading is reading:  # else somebody who waited beside has begun the next one
            self._reading = None
        try:
            jobs = reading.result()
        except CollectorError as error:
            return None, str(error)
        if remember:
            self._keys = _keys(jobs)
        return jobs, ""


def _keys(jobs: Iterable[LocalJob]) -> dict[Process, str]:
    return {(process.pid, process.started): key_of(job) for job in jobs for process in job.processes}


def _seen(jobs: tuple[LocalJob, ...], told: SlurmLook) -> Seen:
    return Seen(jobs=jobs, slurm=told.jobs, controller=told.answered, fresh=told.fresh, trees=told.trees)


def on_gpu(seen: Seen, holders: Collection[int]) -> Seen:
    """Only jobs of which a process holds this GPU are concerned; what they have beside it still belongs to them."""
    there = (job for job in seen.jobs if any(process.pid in holders for process in job.processes))
    return replace(seen, concerned=frozenset(map(key_of, there)))
