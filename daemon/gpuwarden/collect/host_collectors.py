"""The collectors of the host beside its GPUs, each as a source that the daemon runs.

All but the site checks read in threads of their own: whatever hangs, hangs there. Site checks are processes, and their
results are delivered again every `REPEATED_EVERY`, since the next run of one may be a day away.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from gpuwarden.base.threads import detached
from gpuwarden.collect.schedule import Deliver, Source, ThreadCollector, polled
from gpuwarden.config.collectors import HostOptions
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.host_collectors.infiniband import InfinibandCollector
from gpuwarden_collectors.host_collectors.memory import MemoryCollector
from gpuwarden_collectors.host_collectors.processes import ProcessesCollector
from gpuwarden_collectors.host_collectors.services import ServicesCollector
from gpuwarden_collectors.host_collectors.storage import StorageCollector
from gpuwarden_collectors.plugin.plugin import PluginOptions, PluginRunner, plugin_environment

REPEATED_EVERY = 30.0
_CLOSED_WITHIN = 2.0
_SYSTEMCTL_BEFORE = 0.5
"""Of the deadline for reading services: the part of systemctl, so that its own failure is reported and not a missed deadline."""


class _Timed(Protocol):
    @property
    def interval(self) -> float: ...
    @property
    def deadline(self) -> float: ...


def host_sources(
    options: HostOptions, *, proc: Path, sysfs: Path, clock: Clock, environment: Mapping[str, str] | None = None
) -> list[Source]:
    """A source for each collector that is enabled, and one for the site checks. `environment`: of which site checks are given a part."""
    return [*_threaded(options, proc, sysfs, clock), *_site_checks(options, clock, environment or os.environ)]


def _threaded(options: HostOptions, proc: Path, sysfs: Path, clock: Clock) -> Iterator[Source]:
    def source(name: str, timed: _Timed, read: Callable[[], Any]) -> Source:
        return polled(name, timed.interval, timed.deadline, ThreadCollector(name, read, timed.deadline, clock).observe)

    if options.infiniband.enabled:
        infiniband = InfinibandCollector(sysfs, proc=proc, exclude=options.infiniband.exclude)
        yield source("infiniband", options.infiniband, infiniband.read)
    if options.storage.enabled:
        wanted = options.storage
        storage = StorageCollector(proc, expected=wanted.expected, patience=wanted.patience, clock=clock)
        yield _closing(source("storage", wanted, storage.read), storage.close)
    if options.memory.enabled:
        yield source("memory", options.memory, MemoryCollector(proc, sysfs).read)
    if options.processes.enabled:
        yield source("processes", options.processes, ProcessesCollector(proc, clock=clock).read)
    if options.services.enabled:
        patience = options.services.deadline * _SYSTEMCTL_BEFORE
        services = ServicesCollector(configured=options.services.expected, timeout=patience)
        yield source("services", options.services, services.read)


def _closing(source: Source, close: Callable[[], None]) -> Source:
    """The same, with something to be done when it ends, in a thread, since it may take its time."""

    async def closed() -> None:
        await asyncio.wait((detached(source.name, close),), timeout=_CLOSED_WITHIN)

    async def run(deliver: Deliver) -> None:
        try:
            await source.run(deliver)
        finally:
            await closed()

    async def once() -> Any:
        try:
            return await source.once()
        finally:
            await closed()

    return Source(source.name, run, once, source.pace)


def _site_checks(options: HostOptions, clock: Clock, environment: Mapping[str, str]) -> Iterator[Source]:
    """Always a source, also without checks: then the findings of removed checks end."""
    checks = [
        PluginOptions(name, c.command, c.interval, c.timeout, c.warning_codes, c.failure_codes)
        for name, c in options.plugins.items()
        if c.enabled and options.plugin.enabled
    ]
    runner = PluginRunner(
        checks, environment=plugin_environment(environment), limit=options.plugin.limit, clock=clock,
        runner=options.plugin.runner,
    )  # fmt: skip

    async def run(deliver: Deliver) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(runner.run(deliver))
            while True:
                deliver(runner.newest())
                await asyncio.sleep(REPEATED_EVERY)

    yield Source("plugin", run, runner.once, REPEATED_EVERY)
