"""The collectors of this host, started and stopped together, each at its own pace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import Any

from gpuwarden.base.paths import RUN_DIR
from gpuwarden.base.threads import detached
from gpuwarden.collect.host_collectors import host_sources, site_checks
from gpuwarden.collect.jobs import gpu_users, jobs_by_process, jobs_source
from gpuwarden.collect.on_demand import OnDemandWorker
from gpuwarden.collect.schedule import Deliver, Source, ThreadCollector, polled
from gpuwarden.config.collectors import Collectors
from gpuwarden.health.view import Named
from gpuwarden.health.xid.witnesses import ANSWERED_WITHIN, FALLEN
from gpuwarden_collectors.base import Clock, CollectorError, Observation, PassOutcome
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.dcgm.facts import DcgmFacts
from gpuwarden_collectors.dcgm.options import DcgmOptions
from gpuwarden_collectors.dcgm.presence import check_presence
from gpuwarden_collectors.event_facts import HostEvent, LogPosition, XidEvent
from gpuwarden_collectors.facts import NvmlFacts, Stamp
from gpuwarden_collectors.kernel_log.reader import KernelLog
from gpuwarden_collectors.nvml.options import NvmlOptions
from gpuwarden_collectors.pci import PciCollector
from gpuwarden_collectors.pci_facts import PciFacts
from gpuwarden_collectors.plugin.options import SiteCheck
from gpuwarden_collectors.receivers.labels import Labels
from gpuwarden_collectors.receivers.watched import WatchedReader
from gpuwarden_collectors.receivers.watched_facts import ContainersFacts
from gpuwarden_collectors.receivers.workloads import WorkloadsReader
from gpuwarden_collectors.receivers.workloads_facts import WorkloadsFacts
from gpuwarden_collectors.slurm.client import SlurmClient
from gpuwarden_collectors.slurm.jobs_facts import JobsFacts
from gpuwarden_collectors.slurm.options import SlurmOptions
from gpuwarden_collectors.spec import Host
from gpuwarden_collectors.worker.life import WorkerLimits
from gpuwarden_collectors.worker.worker import Worker

HISTORY_AFTER = 600.0
"""Seconds: older kernel lines are history if the ledger is new, since no daemon ran then."""
BUS_READ_WITHIN = 1.0
"""Seconds to wait for the PCI bus. After that the kernel log is read without known slots, and all its lines count."""
KERNEL_LOG_RETRY = 30.0
WATCHED_EVERY, WATCHED_DEADLINE = 15.0, 20.0
"""Seconds, as those of Slurm's jobs."""
WORKLOADS_EVERY, WORKLOADS_DEADLINE = 5.0, 10.0
"""Seconds, as between two passes of NVML, which lists the processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Sources to read, and how often.

    `kmsg`: None does not follow the kernel log. `gpus_alone`: only NVML, PCI bus and kernel log. `watched_containers`:
    the socket for container labels; None watches no container for stalls. `of_features`: functions that return the
    source of a feature, or None if it has none.
    """

    collectors: Collectors
    sysfs: Path
    kmsg: Path | None
    proc: Path = Path("/proc")
    host: Path | None = None
    plugins: Mapping[str, SiteCheck] = field(default_factory=dict)
    slurm: SlurmOptions = field(default_factory=SlurmOptions)
    slurm_client: SlurmClient | None = None
    gpus_alone: bool = False
    run_dir: Path = RUN_DIR
    watched_containers: Path | None = None
    of_features: Sequence[Callable[[Clock], Source | None]] = ()

    @property
    def nvml(self) -> NvmlOptions:
        return self.collectors.nvml

    def in_full(self) -> Sources:
        """Return the sources with every reading of each GPU in the first pass."""
        return replace(self, collectors=replace(self.collectors, nvml=replace(self.nvml, in_full=True)))


class Readers:
    """All collectors of the daemon. `on_events` gets host events as they arrive; the function passed to `run` gets
    observations.
    """

    def __init__(
        self, sources: Sources, boot_id: str, on_events: Callable[[Sequence[HostEvent]], None], clock: Clock
    ) -> None:
        self._sources = sources
        self._boot_id = boot_id
        self._hand_over = on_events
        self._bus_read = asyncio.Event()
        self._later: list[asyncio.TimerHandle] = []
        self._clock = clock
        self._kernel_log: KernelLog | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.read_gpus = asyncio.Event()
        self.read_bus = asyncio.Event()
        self._read_jobs = asyncio.Event()
        self._jobs_are_next = False
        self._gpu_users: Mapping[int, tuple[str, ...]] | None = None
        self._jobs: Mapping[int, int] = {}
        self._gpu_pass = asyncio.Lock()
        self._kept_off = ""
        self._nvml = self._worker("gpuwarden_collectors.nvml.reader:NvmlReader", NvmlFacts, sources.nvml)
        self._dcgm = self._on_demand(sources.collectors.dcgm)
        self._running = list(self._all())

    def _worker(self, reader: str, facts: type[Named], options: NvmlOptions | DcgmOptions) -> Worker[Named]:
        return Worker(
            facts.collector,
            reader,
            facts,
            limits=WorkerLimits(deadline=options.deadline, init_deadline=options.init_deadline),
            on_event=lambda event: self._take_events((event,)),
            options=options,
            clock=self._clock,
        )

    def _on_demand(self, options: DcgmOptions) -> OnDemandWorker[DcgmFacts]:
        worker = self._worker("gpuwarden_collectors.dcgm.reader:DcgmReader", DcgmFacts, options)
        presence = ThreadCollector(DcgmFacts.collector, lambda: check_presence(options), options.deadline, self._clock)
        return OnDemandWorker(presence, worker)

    def _all(self) -> Iterator[Source]:
        sources = self._sources
        nvml, pci, dcgm = sources.nvml, sources.collectors.pci, sources.collectors.dcgm
        if nvml.enabled:
            yield polled(NvmlFacts.collector, nvml.interval, nvml.deadline, self._observe_gpus, self.read_gpus)
        if pci.enabled:
            bus = ThreadCollector(PciFacts.collector, PciCollector(sources.sysfs).read, pci.deadline, self._clock)
            yield polled(bus.name, pci.interval, pci.deadline, bus.observe, self.read_bus)
        if sources.gpus_alone:
            return
        if dcgm.enabled:
            yield polled(DcgmFacts.collector, dcgm.interval, dcgm.deadline, self._dcgm.observe)
        host = Host(proc=sources.proc, sysfs=sources.sysfs, root=sources.host, clock=self._clock)
        yield from host_sources(sources.collectors, host)
        yield site_checks(sources.collectors.plugin, sources.plugins, self._clock)
        if sources.slurm_client is not None and sources.slurm.jobs:
            yield jobs_source(
                sources.slurm,
                sources.slurm_client,
                run_dir=sources.run_dir,
                proc=sources.proc,
                users=self._gpu_pids,
                clock=self._clock,
                wake=self._read_jobs,
            )

        if sources.watched_containers is not None:
            labels = Labels(sources.watched_containers)
            reader = WatchedReader(sources.proc, pids=self._gpu_pids, labels=labels, clock=self._clock)
            watched = ThreadCollector(ContainersFacts.collector, reader.read, WATCHED_DEADLINE, self._clock)
            yield polled(watched.name, WATCHED_EVERY, WATCHED_DEADLINE, watched.observe)
        runs = WorkloadsReader(
            sources.proc,
            users=lambda: self._gpu_users,
            jobs=lambda: self._jobs,
            root=sources.host or Path("/"),
            clock=self._clock,
        )
        workloads = ThreadCollector(WorkloadsFacts.collector, runs.read, WORKLOADS_DEADLINE, self._clock)
        yield polled(workloads.name, WORKLOADS_EVERY, WORKLOADS_DEADLINE, workloads.observe)
        for made in sources.of_features:
            if (source := made(self._clock)) is not None:
                yield source

    def run(self, deliver: Deliver) -> None:
        """Read from now on, until `close`. The NVML worker is started at once, the DCGM worker once DCGM is present."""

        def took(observation: Observation[Any]) -> None:
            if observation.collector == NvmlFacts.collector:
                self._gpu_users = None if observation.facts is None else gpu_users(observation.facts)
                if self._jobs_are_next:
                    self._jobs_are_next = False
                    self._read_jobs.set()
            elif observation.collector == PciFacts.collector:
                self._bus_read.set()
            elif observation.collector == JobsFacts.collector:
                self._jobs = jobs_by_process(observation.facts)
            deliver(observation)

        for source in self._running:
            self._task(source.run(took))

    async def _observe_gpus(self) -> Observation[NvmlFacts]:
        async with self._gpu_pass:
            if self._kept_off:
                now = self._clock()
                paused = PassOutcome.PAUSED
                return Observation(
                    collector=NvmlFacts.collector, outcome=paused, started=now, finished=now, error=self._kept_off
                )
            return await self._nvml.observe()

    @asynccontextmanager
    async def off_the_gpus(self, why: str) -> AsyncIterator[bool]:
        """Keep the reader off the GPUs, and yield True if none of its processes has one open. Other sources are still
        read.

        NVML passes continue as PAUSED: earlier readings become stale, and no failure follows. If cancelled, the reader
        stays off: the daemon is ending, and the step that needs the GPUs free continues without it.
        """
        self._kept_off, ends = why, False
        try:
            async with self._gpu_pass:
                gone = await self._nvml.rest()
            yield gone
        except asyncio.CancelledError:
            ends = True
            raise
        finally:
            if not ends:
                self._kept_off = ""
                self.read_gpus.set()

    async def hold_gpu_passes(self) -> None:
        """Start no GPU pass until `let_go`."""
        await self._gpu_pass.acquire()

    def let_go(self) -> None:
        self._gpu_pass.release()

    def _gpu_pids(self) -> Collection[int]:
        return self._gpu_users or ()

    def read_everything(self) -> None:
        """Read all sources now; the jobs once the processes with an open GPU are known."""
        self._jobs_are_next = True
        self.read_gpus.set()
        self.read_bus.set()

    async def once(self, patience: float) -> list[Observation[Any]]:
        """Run one pass of each collector. Waits up to `patience` seconds for a library that is still being initialised."""
        give_up = self._clock().boottime + patience

        async def one(source: Source) -> Observation[Any]:
            made = await source.once()
            while (
                made.outcome is PassOutcome.TIMED_OUT
                and source.name == NvmlFacts.collector
                and self._clock().boottime < give_up
            ):
                made = await source.once()
            return made

        return list(await asyncio.gather(*map(one, self._running)))

    async def bus_read(self) -> None:
        """Wait at most BUS_READ_WITHIN for the first pass of the PCI bus: its slots decide which lines of the kernel
        log count.
        """
        if self._sources.collectors.pci.enabled and self._sources.kmsg is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(BUS_READ_WITHIN):
                    await self._bus_read.wait()

    def follow_kernel_log(self, resume: LogPosition | None, *, first: bool) -> None:
        """Follow the kernel log from `resume` on; `first`: the ledger is new, so old lines are history.
        Never raises.
        """
        if self._sources.kmsg is None:
            return
        history_before = self._clock().boottime - HISTORY_AFTER if first else None
        self._kernel_log = KernelLog(
            str(self._sources.kmsg),
            self._boot_id,
            lambda events, _: self._take_events(events),
            resume=resume,
            history_before=history_before,
            clock=self._clock,
            aside=partial(detached, "kernel log"),
        )
        self._task(self._keep_following(self._kernel_log))

    @property
    def paces(self) -> dict[str, float]:
        """The most seconds between two passes, by running collector, even if its source hangs."""
        return {source.name: source.pace for source in self._running}

    @property
    def log_position(self) -> LogPosition | None:
        """Position up to which the kernel log was read; the events before it were delivered."""
        return None if self._kernel_log is None else self._kernel_log.position

    @property
    def log_read(self) -> bool:
        """Return True if the kernel log was read to its end without a gap, or is not followed, so that nothing waits
        for it.
        """
        return self._sources.kmsg is None or (self._kernel_log is not None and self._kernel_log.complete)

    @property
    def log_records(self) -> int:
        return 0 if self._kernel_log is None else self._kernel_log.records

    @property
    def disbelieved(self) -> Mapping[str, int]:
        """Number of kernel log records that had the form of an event but do not count, by reason."""
        return {} if self._kernel_log is None else self._kernel_log.disbelieved

    @property
    def events_dropped(self) -> int:
        """Number of NVML events that were dropped because they came faster than any healthy driver sends them."""
        return self._nvml.events_dropped

    def kernel_log_observation(self, now: Stamp) -> Observation[None] | None:
        """Stand-in for a pass, which the kernel log does not have; None if it is switched off."""
        if self._kernel_log is None:
            return None
        outcome = PassOutcome.FAILED if self._kernel_log.error else PassOutcome.OBSERVED
        return Observation(
            collector="kernel_log", outcome=outcome, started=now, finished=now, error=self._kernel_log.error
        )

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._kernel_log is not None:
            self._kernel_log.close()
        await self._nvml.close()
        await self._dcgm.close()
        for timer in self._later:
            timer.cancel()

    def _take_events(self, events: Sequence[HostEvent]) -> None:
        """Deliver host events. For an Xid 79, bus and NVML, which may disprove it, are read at once, and it is judged
        after that.
        """
        self._hand_over(events)
        if any(isinstance(event, XidEvent) and str(event.xid) == FALLEN for event in events):
            self.read_gpus.set()
            self.read_bus.set()
            loop = asyncio.get_running_loop()
            waiting = [timer for timer in self._later if timer.when() > loop.time()]
            self._later = [*waiting, loop.call_later(ANSWERED_WITHIN, self._hand_over, ())]

    def _task(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(work))

    async def _keep_following(self, log: KernelLog) -> None:
        """Retry until the kernel log is open; after that the reader itself handles errors."""
        while True:
            try:
                log.start()
            except CollectorError:
                await asyncio.sleep(KERNEL_LOG_RETRY)  # `log.error` has the reason
            else:
                return
