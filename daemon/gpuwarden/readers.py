"""The collectors of this host, started and stopped together, each at its own pace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuwarden.schedule import ThreadCollector, every
from gpuwarden_collectors.base import Clock, CollectorError, Observation, PassOutcome
from gpuwarden_collectors.facts import HostEvent, LogPosition, NvmlFacts, PciFacts, Stamp
from gpuwarden_collectors.kernel_log.reader import KernelLog
from gpuwarden_collectors.nvml.options import NvmlOptions
from gpuwarden_collectors.pci import PciCollector
from gpuwarden_collectors.worker import Worker
from gpuwarden_collectors.worker_life import WorkerLimits

HISTORY_AFTER = 600.0
"""Seconds: older kernel lines are history when a ledger is begun (they were nobody's to act on)."""
KERNEL_LOG_RETRY = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where to read, and how often, in seconds. `kmsg` None: the kernel log is not followed."""

    nvml: NvmlOptions
    sysfs: Path
    kmsg: Path | None
    pci_enabled: bool = True
    pci_interval: float = 10.0
    pci_deadline: float = 10.0


class Readers:
    """`happened` is given host events as they come; the observations go to the functions of `run`."""

    def __init__(
        self, sources: Sources, boot_id: str, happened: Callable[[Sequence[HostEvent]], None], clock: Clock
    ) -> None:
        self._sources = sources
        self._boot_id = boot_id
        self._happened = happened
        self._clock = clock
        self._kernel_log: KernelLog | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.look = asyncio.Event()
        self.look_at_the_bus = asyncio.Event()
        options = sources.nvml
        self._nvml: Worker[NvmlFacts] = Worker(
            "nvml",
            "gpuwarden_collectors.nvml.sweep:NvmlReader",
            NvmlFacts,
            limits=WorkerLimits(deadline=options.deadline, init_deadline=options.init_deadline),
            on_event=lambda event: happened((event,)),
            options=options,
            clock=clock,
        )
        self._pci = ThreadCollector("pci", PciCollector(sources.sysfs).read, sources.pci_deadline, clock)

    def run(
        self,
        nvml: Callable[[Observation[NvmlFacts]], None],
        pci: Callable[[Observation[PciFacts]], None],
    ) -> None:
        """Read from now on, until `close`. The worker is started at once."""
        if self._sources.nvml.enabled:
            self._task(every(self._sources.nvml.interval, self._nvml.observe, nvml, self.look))
        if self._sources.pci_enabled:
            self._task(every(self._sources.pci_interval, self._pci.observe, pci, self.look_at_the_bus))

    async def once(self, patience: float) -> tuple[Observation[NvmlFacts], Observation[PciFacts]]:
        """One pass of each. A library that is still being initialised is waited for, up to `patience` seconds."""
        pci = asyncio.create_task(self._pci.observe())
        give_up = self._clock().boottime + patience
        nvml = await self._nvml.observe()
        while nvml.outcome is PassOutcome.TIMED_OUT and self._clock().boottime < give_up:
            nvml = await self._nvml.observe()
        return nvml, await pci

    def follow_kernel_log(self, resume: LogPosition | None, *, first: bool) -> None:
        """Follow it from `resume` on; `first`: nothing is remembered, so what is old is history. Never raises."""
        if self._sources.kmsg is None:
            return
        history_before = self._clock().boottime - HISTORY_AFTER if first else None
        self._kernel_log = KernelLog(
            str(self._sources.kmsg), self._boot_id, lambda events, _: self._happened(events),
            resume=resume, history_before=history_before, clock=self._clock,
        )  # fmt: skip
        self._task(self._keep_following(self._kernel_log))

    @property
    def log_position(self) -> LogPosition | None:
        """How far the kernel log was read; everything up to there has been handed over."""
        return None if self._kernel_log is None else self._kernel_log.position

    @property
    def log_records(self) -> int:
        return 0 if self._kernel_log is None else self._kernel_log.records

    @property
    def events_dropped(self) -> int:
        """Events of NVML that came faster than anything but a fault would send them."""
        return self._nvml.events_dropped

    def kernel_log_observation(self, now: Stamp) -> Observation[None] | None:
        """What stands for a pass of a collector that has none; None if it is switched off."""
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

    def _task(self, work: Coroutine[None, None, None]) -> None:
        self._tasks.append(asyncio.create_task(work))

    async def _keep_following(self, log: KernelLog) -> None:
        """Opens it, again and again until it can be: after that the reader itself sees to errors."""
        while True:
            try:
                log.start()
            except CollectorError:
                await asyncio.sleep(KERNEL_LOG_RETRY)  # `log.error` says what is wrong
            else:
                return
