"""Records a trace without a daemon, by the same readers. Nothing is judged, and nothing but the trace is written.

The trace begins with the state from the ledger, so that a replay has the expected GPUs and the latched findings.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from gpuwarden.collect.collectors import Readers
from gpuwarden.config.model import Config, Run
from gpuwarden.engine.engine import Engine
from gpuwarden.health.checkpoint import checkpoint
from gpuwarden.ledger.errors import LedgerError
from gpuwarden.ledger.machine import same_machine
from gpuwarden.ledger.reader import read_only
from gpuwarden.ledger.rows import Memory
from gpuwarden.runtime.wiring import Site
from gpuwarden.trace.pseudonyms import Pseudonyms
from gpuwarden.trace.recorder import Recorder
from gpuwarden.trace.records import Began, ErrorsChanged, HostEventsSeen, Passed
from gpuwarden_collectors.base import Clock, host_clock
from gpuwarden_collectors.event_facts import HostEvent

CHECK_EVERY = 1.0  # seconds between checks of the recorder's own errors
WRITTEN_WITHIN = 10.0


class RecordError(Exception):
    """The recording ended early. The message gives the reason; the trace so far can be replayed."""


def record(config: Config, path: Path, seconds: float | None, *, anonymise: bool) -> None:
    """Record for `seconds`, or until SIGINT or SIGTERM. Raises OSError if `path` is not writable, and RecordError."""
    if config.collectors.nvml.simulate:
        with tempfile.TemporaryDirectory(prefix="gpuwarden-") as folder:  # a running simulation keeps its own host
            _record_host(replace(config, run=Run(Path(folder))), path, seconds, anonymise=anonymise)
    else:
        _record_host(config, path, seconds, anonymise=anonymise)


def _record_host(config: Config, path: Path, seconds: float | None, *, anonymise: bool) -> None:
    site = Site.of(config)
    names = Pseudonyms((config.node, os.uname().nodename)) if anonymise else None
    recorder = Recorder(path, names=names)
    try:
        if site.simulation is not None:
            site.simulation.prepare()
        asyncio.run(_record(site, recorder, seconds, host_clock))
    finally:
        written = recorder.close(WRITTEN_WITHIN)
    if recorder.error or not written:
        raise RecordError(recorder.error or f"{path} does not take what is written to it")


async def _record(site: Site, recorder: Recorder, seconds: float | None, clock: Clock) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    memory = _remembered(site)
    now = clock()
    remembered = tuple(checkpoint(Engine("", site.rules, memory.events).state, now))
    recorder.take(Began(at=now, boot_id=site.boot_id, rules=site.rules, memory=remembered))

    def record_events(events: Sequence[HostEvent]) -> None:
        recorder.take(HostEventsSeen(at=clock(), events=tuple(events)))

    readers = Readers(site.sources.in_full(), site.boot_id, record_events, clock)
    try:
        readers.run(lambda observation: recorder.take(Passed(observation)))
        readers.follow_kernel_log(memory.position, first=memory.position is None)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await _until(stop, readers, recorder, clock)
    finally:
        await readers.close()
        await site.close()


async def _until(stop: asyncio.Event, readers: Readers, recorder: Recorder, clock: Clock) -> None:
    """Wait until `stop` is set or the trace cannot be written. Meanwhile record the kernel log's read errors."""
    recorded_error = ""
    while not stop.is_set() and not recorder.error:
        log = readers.kernel_log_observation(clock())
        error = "" if log is None else log.error
        if error != recorded_error:
            recorder.take(ErrorsChanged(at=clock(), errors={"kernel_log": error} if error else {}))
            recorded_error = error
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), CHECK_EVERY)


def _remembered(site: Site) -> Memory:
    """Return the ledger's memory; empty unless there is a readable ledger of this machine."""
    try:
        with read_only(site.ledger) as reader:
            return reader.memory() if same_machine(reader.machine(), site.machine) else Memory()
    except LedgerError:
        return Memory()
