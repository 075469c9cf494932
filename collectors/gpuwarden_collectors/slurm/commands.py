"""Calls of Slurm's commands: bounded in time, number and size, in an environment in which they always say the same.

A command that finds no controller takes 9 s to say so, one whose controller hangs 10 s or what MessageTimeout is. What
was cut short may still be done later by the controller: read the state before repeating a change.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

from gpuwarden_collectors.plugin.run import Process, Run, run
from gpuwarden_collectors.slurm.errors import TIMEOUT, Unreachable, failure

_AT_ONCE = 2
_MOST_OUTPUT = 16 << 20  # bytes: a line for each node of a partition is about 100
_VARIABLES = ("SLURM_", "SLURMD_", "SQUEUE_", "SINFO_", "SCONTROL_", "SCANCEL_", "SBATCH_", "SALLOC_", "SRUN_")
_KEPT_VARIABLES = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_SACK_KEY", "SLURM_SACK_JWKS")
_PATH = (
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # a unit of systemd has it, a hook of Slurm's not
)


def slurm_environment(inherited: Mapping[str, str], conf: Path | None = None) -> dict[str, str]:
    """Without the variables that change what a command asks or how it answers; with those by which it finds Slurm."""
    kept = {k: v for k, v in inherited.items() if not k.startswith(_VARIABLES) or k in _KEPT_VARIABLES}
    if conf is not None:
        kept["SLURM_CONF"] = str(conf)
    return {"PATH": _PATH, **kept, "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}


class Commands:
    """`conf` None: where Slurm searches for it. `folder`: of the programs, None for PATH. `timeout`: seconds for a call.

    `calls` counts the programs started.
    """

    def __init__(
        self,
        *,
        conf: Path | None = None,
        folder: Path | None = None,
        timeout: float = TIMEOUT,
        inherited: Mapping[str, str] = os.environ,
    ) -> None:
        self._environment = slurm_environment(inherited, conf)
        self._folder = folder
        self._timeout = timeout
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._in_flight: dict[tuple[str, ...], asyncio.Task[str]] = {}
        self._tasks: set[asyncio.Task[str]] = set()
        self._left: list[Process] = []
        self.calls = 0

    async def ask(self, undone: str, *command: str) -> str:
        """Its output. Callers that ask the same meanwhile share one call and its output.

        Raises SlurmError, which begins with `undone`, such as "cannot read node n1".
        """
        task = self._in_flight.get(command)
        if task is None:
            task = asyncio.create_task(self._call(undone, command))
            self._in_flight[command] = task
            self._tasks.add(task)
            task.add_done_callback(lambda done: self._answered(command, done))
        return await asyncio.shield(task)

    async def change(self, undone: str, *command: str) -> None:
        """Change something; what is asked after it is asked anew. Raises SlurmError; after Unreachable it may yet be done."""
        try:
            await self._call(undone, command)
        finally:
            self._in_flight.clear()

    async def close(self) -> None:
        """End what is under way. A command that cannot be ended is left."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _answered(self, command: tuple[str, ...], task: asyncio.Task[str]) -> None:
        self._tasks.discard(task)
        if self._in_flight.get(command) is task:
            del self._in_flight[command]
        if not task.cancelled():
            task.exception()  # no caller may be waiting for it any more

    async def _call(self, undone: str, command: tuple[str, ...]) -> str:
        async with self._turns:
            self._left = [process for process in self._left if not process.gone()]
            if len(self._left) >= _AT_ONCE:
                raise Unreachable(
                    f"{undone}: {len(self._left)} earlier commands of Slurm's hang in the kernel and cannot be ended "
                    f"(pid {', '.join(str(process.pid) for process in self._left)}); is their file system dead?"
                )
            self.calls += 1
            done = await run(
                (self._program(command[0]), *command[1:]), self._environment, self._timeout, kept=_MOST_OUTPUT
            )
        if done.left is not None:
            self._left.append(done.left)
        return _answer(undone, " ".join(command[:2]), done)

    def _program(self, name: str) -> str:
        return name if self._folder is None else str(self._folder / name)


def _answer(undone: str, command: str, done: Run) -> str:
    answer, complaint = (stream.decode("utf-8", "surrogateescape") for stream in (done.stdout, done.stderr))
    if done.exit_code is None:
        raise Unreachable(f"{undone}: {command} {done.error}; see 'scontrol ping'; it is tried again")
    if done.exit_code == _NOT_STARTED:
        raise Unreachable(f"{undone}: {command} cannot be started; set slurm.folder to where Slurm's commands are")
    if done.exit_code:
        raise failure(undone, command, complaint.strip() or answer)
    if len(done.stdout) >= _MOST_OUTPUT:
        raise failure(undone, command, f"more than {_MOST_OUTPUT >> 20} MiB")
    return answer


_NOT_STARTED = 127  # of the shell: there is no such program
