"""Slurm's jobs on this node, as a source that the daemon runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from gpuwarden.base.paths import job_notes
from gpuwarden.collect.schedule import Deliver, Source, ThreadCollector, every
from gpuwarden_collectors.base import Clock, CollectorError, Observation
from gpuwarden_collectors.facts import NvmlFacts
from gpuwarden_collectors.slurm.client import Commands, SlurmClient
from gpuwarden_collectors.slurm.errors import SlurmError
from gpuwarden_collectors.slurm.jobs import JobsReader
from gpuwarden_collectors.slurm.jobs_facts import JobsFacts
from gpuwarden_collectors.slurm.options import SlurmOptions, conf_path

DEADLINE = 20.0
CONF_FOUND_WITHIN = 2.0
"""Seconds to check whether slurm.conf exists, which may be on a file server."""


def gpu_users(facts: NvmlFacts) -> Mapping[int, tuple[str, ...]]:
    """The processes that have a GPU open, each with the PCI addresses of its GPUs."""
    slots_by_pid: dict[int, tuple[str, ...]] = {}
    for gpu in facts.gpus:
        for process in gpu.processes:
            slots_by_pid[process.pid] = (*slots_by_pid.get(process.pid, ()), gpu.slot)
    return slots_by_pid


def jobs_by_process(facts: JobsFacts | None) -> Mapping[int, int]:
    """The job number of each process, unless it is only inferred from the process's user."""
    processes = () if facts is None else facts.processes
    return {
        process.pid: process.job for process in processes if process.job is not None and process.known_from != "user"
    }


def jobs_source(
    options: SlurmOptions,
    client: SlurmClient,
    *,
    run_dir: Path,
    proc: Path,
    users: Callable[[], Collection[int]],
    clock: Clock,
    wake: asyncio.Event | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Source:
    """The source of Slurm's jobs, read in its own thread. If the folder of the prolog's notes cannot be made, there are
    no notes.
    """
    calls = _Calls(client.routine)
    notes = job_notes(run_dir)
    conf = conf_path(options, environment)
    reader = JobsReader(proc, notes, conf, node=client.node.known, pids=users, ask=calls, clock=clock)
    collector = ThreadCollector("jobs", reader.read, DEADLINE, clock)
    there = ThreadCollector("jobs", conf.exists, CONF_FOUND_WITHIN, clock)
    assumed = ""

    async def once() -> Observation[JobsFacts]:
        nonlocal assumed
        calls.loop = asyncio.get_running_loop()
        if not client.node.known and not assumed and (await there.observe()).facts:
            assumed = await _name_or_hostname(client)
        reader.is_called(client.node.known or assumed)
        return await collector.observe()

    async def run(deliver: Deliver) -> None:
        _make(notes)
        await every(options.jobs_interval, once, deliver, wake)

    return Source("jobs", run, once, options.jobs_interval + options.timeout + DEADLINE)


async def _name_or_hostname(client: SlurmClient) -> str:
    """Name of this node in Slurm.

    If it is not found, the short hostname, which most nodes use, until another part of the daemon finds the name.
    """
    try:
        return await client.routine.node_name()
    except SlurmError:
        return client.node.hostname.partition(".")[0]


def _make(notes: Path) -> None:
    """Create the folder if the package has not. The scripts use only a folder of their own user."""
    with contextlib.suppress(OSError):
        notes.parent.mkdir(mode=0o700, exist_ok=True)
        notes.mkdir(mode=0o700, exist_ok=True)


class _Calls:
    """Lets a thread run Slurm's commands through the loop, where they are counted and bounded."""

    def __init__(self, commands: Commands) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._commands = commands

    def __call__(self, command: tuple[str, ...]) -> str:
        if self.loop is None:
            raise CollectorError("cannot read Slurm's jobs: the daemon has only just started")
        call = asyncio.run_coroutine_threadsafe(
            self._commands.ask("cannot read the jobs of this node", *command), self.loop
        )
        try:
            return call.result(DEADLINE)
        except TimeoutError:
            call.cancel()
            raise CollectorError(f"cannot read the jobs of this node: {command[0]} does not respond") from None
