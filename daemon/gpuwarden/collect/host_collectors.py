"""The collectors of the host other than its GPUs, each as a source that the daemon runs.

All but the site checks read in their own threads, so that a read that hangs blocks no other. Site checks are processes,
and their results are delivered again every `REPEATED_EVERY`, since the next run of a check may be a day away.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gpuwarden.base.threads import detached
from gpuwarden.collect.schedule import Deliver, Source, ThreadCollector, polled
from gpuwarden.config.collectors import Collectors
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.host_facts import PluginFacts
from gpuwarden_collectors.plugin.options import PluginOptions, SiteCheck
from gpuwarden_collectors.plugin.plugin import PluginRunner, plugin_environment
from gpuwarden_collectors.registry import HOST_COLLECTORS
from gpuwarden_collectors.spec import Closing, Host

REPEATED_EVERY = 30.0
_CLOSED_WITHIN = 2.0


def host_sources(collectors: Collectors, host: Host) -> Iterator[Source]:
    """Yield a source for each collector that is enabled."""
    for spec in HOST_COLLECTORS:
        options = collectors.of(spec)
        if options.enabled:
            reader = spec.reader(host, options)
            observe = ThreadCollector(spec.name, reader.read, options.deadline, host.clock).observe
            source = polled(spec.name, options.interval, options.deadline, observe)
            yield _closing(source, reader.close) if isinstance(reader, Closing) else source


def _closing(source: Source, close: Callable[[], None]) -> Source:
    """Return the source with a function that is called when it ends, in a thread, since it may block."""

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


def site_checks(
    options: PluginOptions, plugins: Mapping[str, SiteCheck], clock: Clock, environment: Mapping[str, str] = os.environ
) -> Source:
    """Return the source of the site checks. It exists also without checks, so that findings of removed checks end.
    `environment`: the checks get a part of it.
    """
    checks = {name: check for name, check in plugins.items() if check.enabled and options.enabled}
    runner = PluginRunner(
        checks, environment=plugin_environment(environment), limit=options.limit, clock=clock, runner=options.runner
    )

    async def run(deliver: Deliver) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(runner.run(deliver))
            while True:
                deliver(runner.newest())
                await asyncio.sleep(REPEATED_EVERY)

    return Source(PluginFacts.collector, run, runner.once, REPEATED_EVERY)
