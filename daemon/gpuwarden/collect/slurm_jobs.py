"""Slurm's jobs on this node, as a source that the daemon runs, and everything else that its hooks need of the daemon."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from gpuwarden.base.paths import job_notes
from gpuwarden.collect.schedule import Deliver, Source, ThreadCollector, every
from gpuwarden.config.slurm import SlurmOptions
from gpuwarden_collectors.base import Clock, CollectorError, Observation
from gpuwarden_collectors.facts import NvmlFacts
from gpuwarden_collectors.slurm.commands import Commands
from gpuwarden_collectors.slurm.errors import SlurmError
from gpuwarden_collectors.slurm.jobs import JobsReader
from gpuwarden_collectors.slurm.jobs_facts import JobsFacts
from gpuwarden_collectors.slurm.nodes import find_name

DEADLINE = 20.0
_CONFS = (Path("/etc/slurm/slurm.conf"), Path("/run/slurm/conf/slurm.conf"), Path("/etc/slurm-llnl/slurm.conf"))
"""Where it is without being told; the second is that of a host that fetches it from the controller."""


def gpu_users(facts: NvmlFacts | None) -> Collection[int]:
    """The processes that have a GPU open."""
    return () if facts is None else {process.pid for gpu in facts.gpus for process in gpu.processes}


def jobs_source(
    options: SlurmOptions,
    *,
    run_dir: Path,
    proc: Path,
    users: Callable[[], Collection[int]],
    clock: Clock,
    wake: asyncio.Event | None = None,
    environment: Mapping[str, str] = os.environ,
    hostname: str = "",
) -> Source:
    """Reads in a thread of its own. `hostname` of this machine, for finding its name in Slurm. Where the folder of the prolog's
    notes cannot be made there are none, that is all.
    """
    commands = Commands(conf=options.conf, folder=options.folder, timeout=options.timeout, inherited=environment)
    ask = _Asker(commands)
    notes = job_notes(run_dir)
    conf = conf_path(options, environment)
    told = options.node or environment.get("SLURMD_NODENAME", "")
    reader = JobsReader(proc, notes, conf, node=told, pids=users, ask=ask, clock=clock)
    collector = ThreadCollector("jobs", reader.read, DEADLINE, clock)

    async def once() -> Observation[JobsFacts]:
        nonlocal told
        ask.loop = asyncio.get_running_loop()
        if not told and conf.exists():
            told = await _name_in_slurm(commands, hostname or os.uname().nodename)
            reader.is_called(told)
        return await collector.observe()

    async def run(deliver: Deliver) -> None:
        _make(notes)
        try:
            await every(options.jobs_interval, once, deliver, wake)
        finally:
            await commands.close()

    return Source("jobs", run, once, options.jobs_interval + options.timeout + DEADLINE)


async def _name_in_slurm(commands: Commands, hostname: str) -> str:
    """Slurm's command reads it in slurm.conf and does not ask the controller; most nodes are called by their short name."""
    try:
        return await find_name(commands, hostname)
    except SlurmError:
        return hostname.partition(".")[0]


def _make(notes: Path) -> None:
    """Where the package has not. Made by another user than that of Slurm's scripts it is not used by them."""
    with contextlib.suppress(OSError):
        notes.parent.mkdir(mode=0o700, exist_ok=True)
        notes.mkdir(mode=0o700, exist_ok=True)


def conf_path(options: SlurmOptions, environment: Mapping[str, str]) -> Path:
    """Where slurm.conf is, or the first place where it should be."""
    told = options.conf or (Path(environment["SLURM_CONF"]) if environment.get("SLURM_CONF") else None)
    return told or next((path for path in _CONFS if path.exists()), _CONFS[0])


class _Asker:
    """Lets a thread ask Slurm through the loop, where its commands are counted and bounded."""

    def __init__(self, commands: Commands) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._commands = commands

    def __call__(self, words: tuple[str, ...]) -> str:
        if self.loop is None:
            raise CollectorError("cannot ask Slurm for jobs: nothing runs yet")
        asked = asyncio.run_coroutine_threadsafe(
            self._commands.ask("cannot read the jobs of this node", *words), self.loop
        )
        try:
            return asked.result(DEADLINE)
        except TimeoutError:
            asked.cancel()
            raise CollectorError(f"cannot read the jobs of this node: {words[0]} does not answer") from None
