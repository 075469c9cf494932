"""One pass without a daemon, by the same readers and the same judge. Nothing is written.

If there is a ledger, its events are used: findings latched by a daemon remain active, and the kernel log is read from
where the daemon stopped. Conditions that must hold for some time are not detected in a single pass. The verdict is
`unknown` if there is no basis for one, like the daemon's after its start.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuwarden.base.threads import detached
from gpuwarden.collect.collectors import Readers
from gpuwarden.config.model import Config, Run
from gpuwarden.engine.engine import Engine
from gpuwarden.health.components import Component
from gpuwarden.health.xid.witnesses import ANSWERED_WITHIN
from gpuwarden.ledger.errors import LedgerError
from gpuwarden.ledger.machine import same_machine
from gpuwarden.ledger.reader import read_only
from gpuwarden.ledger.rows import Memory
from gpuwarden.publish.status import status
from gpuwarden.runtime.wiring import Site
from gpuwarden_collectors.base import host_clock

LEDGER_ANSWERS_WITHIN = 3.0
LOG_READ_WITHIN = 5.0
LOG_SETTLED = 0.1  # seconds without a new record after which the log counts as fully read


def check_once(config: Config) -> dict[str, Any]:
    """Return the status document of one pass. It takes as long as the driver, at most its initialisation deadline."""
    if not config.collectors.nvml.simulate:
        return asyncio.run(_check(Site.of(config)))
    with tempfile.TemporaryDirectory(prefix="gpuwarden-") as folder:  # a running simulation keeps its own host
        site = Site.of(replace(config, run=Run(Path(folder))))
        if site.simulation is not None:
            site.simulation.prepare()
        return asyncio.run(_check(site))


async def _check(site: Site) -> dict[str, Any]:
    memory, forgotten = await _remembered(site)
    engine = Engine(site.boot_id, site.rules, memory.events)
    readers = Readers(
        site.sources.in_full(), site.boot_id, lambda events: engine.ingest(events, host_clock()), host_clock
    )
    try:
        readers.follow_kernel_log(memory.position, first=memory.position is None)
        observations = await readers.once(site.sources.nvml.init_deadline)
        await _log_read(readers)
        log = readers.kernel_log_observation(host_clock())
        for observation in observations:
            engine.observed(observation)
        if log is not None:
            engine.note(log)
        engine.set_errors(_errors(site, forgotten, "" if log is None else log.error), host_clock())
        step = engine.step(host_clock())
        if engine.undecided(host_clock()):  # the kernel line is newer than the readings: read again
            for observation in await readers.once(site.sources.nvml.init_deadline):
                engine.observed(observation)
            step = engine.step(host_clock())
        if engine.undecided(host_clock()):  # a source that could confirm the line is disabled
            await asyncio.sleep(ANSWERED_WITHIN)
            step = engine.step(host_clock())
        engine.kept_out = readers.disbelieved
    finally:
        await readers.close()
        await site.close()
    now = host_clock()
    return status(engine.snapshot(site.service(now), now, verdict=step.verdict, dropped={}), now)


def _errors(site: Site, ledger: str, kernel_log: str) -> dict[str, str]:
    """Return the errors of a single pass, by component."""
    texts = {Component.LEDGER: ledger, Component.KERNEL_LOG: kernel_log, Component.CONFIG_FAULTY: site.config.fault}
    return {component.value: text for component, text in texts.items() if text}


async def _remembered(site: Site) -> tuple[Memory, str]:
    """Return the memory of this machine's ledger, empty without one, and why it could not be read, else ""."""
    reading = detached("ledger", lambda: _from_ledger(site))
    await asyncio.wait((reading,), timeout=LEDGER_ANSWERS_WITHIN)
    late = f"ledger {site.ledger} has not answered within {LEDGER_ANSWERS_WITHIN:g} s: is its filesystem frozen?"
    return reading.result() if reading.done() else (Memory(), late)


def _from_ledger(site: Site) -> tuple[Memory, str]:
    try:
        with read_only(site.ledger) as reader:
            return (reader.memory() if same_machine(reader.machine(), site.machine) else Memory()), ""
    except LedgerError as error:
        nobody_began_one = isinstance(error.__cause__, FileNotFoundError)
        return Memory(), "" if nobody_began_one else str(error)


async def _log_read(readers: Readers) -> None:
    """Wait until the kernel log is read to its end, but at most `LOG_READ_WITHIN` seconds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LOG_READ_WITHIN):
            await _settled(readers)


async def _settled(readers: Readers) -> None:
    seen = -1
    while seen != readers.log_records:
        seen = readers.log_records
        await asyncio.sleep(LOG_SETTLED)
