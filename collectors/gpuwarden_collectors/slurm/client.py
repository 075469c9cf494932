"""Calls of Slurm's commands: bounded in time, number and size, in an environment in which they always say the same.

A command that finds no controller takes 9 s to say so, one whose controller hangs 10 s or what MessageTimeout is. What
was cut short may still be done later by the controller: read the state before repeating a change.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.plugin.run import Process, Run, run
from gpuwarden_collectors.slurm.command_record import RECORDED
from gpuwarden_collectors.slurm.errors import TIMEOUT, CalledOff, Unreachable, failure
from gpuwarden_collectors.slurm.node_name import NodeName
from gpuwarden_collectors.slurm.turns import AT_ONCE, Precedence, Turn, Turns

_MOST_OUTPUT = 16 << 20  # bytes: a line for each node of a partition is about 100
_VARIABLES = (
    "SLURM_",
    "SLURMD_",
    "SQUEUE_",
    "SINFO_",
    "SCONTROL_",
    "SCANCEL_",
    "SBATCH_",
    "SALLOC_",
    "SRUN_",
    "SACCT_",
)
_KEPT_VARIABLES = (
    "SLURM_CONF",
    "SLURM_CONF_SERVER",
    "SLURM_JWT",
    "SLURM_SACK_KEY",
    "SLURM_SACK_JWKS",
    "SLURM_SACK_SOCKET",
)
_PATH = (
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # a unit of systemd has it, a hook of Slurm's not
)


def slurm_environment(inherited: Mapping[str, str], conf: Path | None = None) -> dict[str, str]:
    """Returns the environment of Slurm's commands.

    It has the variables that locate Slurm, but none that changes what a command asks or how it answers.
    """
    kept = {k: v for k, v in inherited.items() if not k.startswith(_VARIABLES) or k in _KEPT_VARIABLES}
    if conf is not None:
        kept["SLURM_CONF"] = str(conf)
    return {"PATH": _PATH, **kept, "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}


Key = tuple[Precedence, tuple[str, ...]]
"""A question: who asks, and the command."""


@dataclass(frozen=True, slots=True)
class Commands:
    """Slurm's commands, called with one precedence."""

    client: SlurmClient
    precedence: Precedence

    async def ask(self, undone: str, *command: str) -> str:
        """Returns the command's output. Callers that ask the same meanwhile share one call and its output.

        Raises SlurmError, which begins with `undone`, such as "cannot read node n1".
        """
        key = self.precedence, command  # none shares a call that waits behind others, or gives way
        return await asyncio.shield(self.client.in_flight.get(key) or self.client.begin(key, undone))

    async def change(
        self,
        undone: str,
        *command: str,
        record: int | None = None,
        held: int | None = None,
        still: Callable[[], bool] | None = None,
    ) -> str:
        """Changes something and returns the command's output; later questions are asked anew.

        The command keeps `record`, an open record of `CommandRecords`. It holds `held`, an open file such as a lock,
        until it ends, even if this process ends first. `still` is called right before the command starts, once it is
        its turn; if it returns False, nothing is started. Raises SlurmError; after Unreachable the change may still
        happen, and CalledOff means that `still` returned False.
        """
        try:
            return await self.client.call(
                self.precedence, undone, command, question=False, record=record, held=held, still=still
            )
        finally:
            self.client.in_flight.clear()

    async def node_name(self, *, again: bool = False) -> str:
        """Slurm's name of this host; with `again` as slurm.conf has it now. Raises SlurmError."""
        return await (self.client.node.find_again(self) if again else self.client.node.find(self))


class SlurmClient:
    """The Slurm client of a daemon. It bounds the calls of all parts together; each part has its own `Commands` of it.

    If `conf` is None, Slurm's own search for it applies. `folder` is that of the programs, None for PATH. `timeout` is
    the time in seconds for a call. `node` is Slurm's name of this host; if it is empty it is found by `hostname`, this
    machine's.
    """

    def __init__(
        self,
        *,
        conf: Path | None = None,
        folder: Path | None = None,
        timeout: float = TIMEOUT,
        node: str = "",
        hostname: str = "",
        inherited: Mapping[str, str] = os.environ,
    ) -> None:
        self.node = NodeName(node, inherited=inherited, hostname=hostname)
        self.signals, self.listing, self.evacuation, self.routine = (
            Commands(self, precedence) for precedence in Precedence
        )
        self.calls = 0
        """Programs started."""
        self._environment = slurm_environment(inherited, conf)
        self._folder = folder
        self._timeout = timeout
        self._turns = Turns()
        self.in_flight: dict[Key, asyncio.Task[str]] = {}
        """Questions without an answer that may be shared: none that was begun before a change."""
        self._tasks: set[asyncio.Task[str]] = set()
        self._left: list[Process] = []

    def begin(self, key: Key, undone: str) -> asyncio.Task[str]:
        """Starts a question, which others may share from now on."""
        task = self.in_flight[key] = asyncio.create_task(self.call(key[0], undone, key[1], question=True))
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._answered(key, done))
        return task

    async def call(
        self,
        precedence: Precedence,
        undone: str,
        command: tuple[str, ...],
        *,
        question: bool,
        record: int | None = None,
        held: int | None = None,
        still: Callable[[], bool] | None = None,
    ) -> str:
        """Returns the output of a command, once it is its turn. Raises SlurmError."""
        done = None
        while done is None:
            async with self._turns.turn(precedence, question=question) as turn:
                self._refuse_beside_left(undone, most=AT_ONCE + (precedence is Precedence.SIGNAL))
                if still is not None and not still():
                    raise CalledOff(f"{undone}: it was called off before it was begun")
                done = None if turn.gave_way else await self._run(command, turn, record, held)
        return _answer(undone, " ".join(command[:2]), done)

    async def close(self) -> None:
        """Ends the commands that are running. Leaves one that cannot be ended."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _answered(self, key: Key, task: asyncio.Task[str]) -> None:
        self._tasks.discard(task)
        if self.in_flight.get(key) is task:
            del self.in_flight[key]
        if not task.cancelled():
            task.exception()  # no caller may be waiting for it any more

    async def _run(self, command: tuple[str, ...], turn: Turn, record: int | None, held: int | None) -> Run | None:
        """Runs one command; returns None if it gave way to another call."""
        self.calls += 1
        program = (self._program(command[0]), *command[1:])
        standard_input: bytes | int = b"" if held is None else held
        if record is not None:
            program, standard_input = (*RECORDED, *program), record
        running = asyncio.create_task(
            run(
                program,
                self._environment,
                self._timeout,
                kept=_MOST_OUTPUT,
                standard_input=standard_input,
                left=self._left.append,
            )
        )
        turn.end = running.cancel
        try:
            return await running
        except asyncio.CancelledError:
            mine = asyncio.current_task()
            if turn.gave_way and mine is not None and not mine.cancelling():
                return None
            raise

    def _refuse_beside_left(self, undone: str, most: int) -> None:
        """Raises Unreachable where `most` programs cannot be ended: another one would most likely not end either."""
        self._left = [process for process in self._left if not process.gone()]
        if len(self._left) >= most:
            raise Unreachable(
                f"{undone}: {len(self._left)} earlier commands of Slurm's hang in the kernel and cannot be ended "
                f"(pid {', '.join(str(process.pid) for process in self._left)}); is their file system dead?"
            )

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
