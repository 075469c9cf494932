"""Runs Slurm's commands, with limits on time, number and output, in an environment that makes their output stable.

A command fails after 9 s if no controller is found, and after MessageTimeout (10 s by default) if the controller
hangs. The controller may still carry out a change that timed out: read the state before repeating it.
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
_VARIABLES = tuple("SLURM_ SLURMD_ SQUEUE_ SINFO_ SCONTROL_ SCANCEL_ SBATCH_ SALLOC_ SRUN_ SACCT_".split())
_KEPT_VARIABLES = tuple(
    "SLURM_CONF SLURM_CONF_SERVER SLURM_JWT SLURM_SACK_KEY SLURM_SACK_JWKS SLURM_SACK_SOCKET".split()
)
_LOCAL = dict.fromkeys(("SACCT_LOCAL", "SCONTROL_LOCAL", "SINFO_LOCAL", "SQUEUE_LOCAL"), "1")
"""In a federation whose commands show all clusters (FederationParameters=fed_display) only this one counts: another may
have nodes of the same names, and its controller may hang.
"""
_PATH = (
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # set for a systemd unit, but not for a Slurm hook
)


def slurm_environment(inherited: Mapping[str, str], conf: Path | None = None) -> dict[str, str]:
    """Returns the environment of Slurm's commands.

    It keeps the variables that locate Slurm, but none that changes a command's request or output.
    """
    kept = {k: v for k, v in inherited.items() if not k.startswith(_VARIABLES) or k in _KEPT_VARIABLES}
    if conf is not None:
        kept["SLURM_CONF"] = str(conf)
    return {"PATH": _PATH, **kept, "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s", **_LOCAL}


Key = tuple[Precedence, tuple[str, ...]]
"""A request: its precedence and the command."""


@dataclass(frozen=True, slots=True)
class Commands:
    """Slurm's commands, called with one precedence."""

    client: SlurmClient
    precedence: Precedence

    async def ask(self, undone: str, *command: str) -> str:
        """Returns the command's output. Concurrent callers with the same command share one call.

        Raises SlurmError, which begins with `undone`, such as "cannot read node n1".
        """
        key = self.precedence, command  # only calls of one precedence are shared: others may wait longer or give way
        return await asyncio.shield(self.client.in_flight.get(key) or self.client.begin(key, undone))

    async def change(
        self,
        undone: str,
        *command: str,
        record: int | None = None,
        held: int | None = None,
        still: Callable[[], bool] | None = None,
    ) -> str:
        """Makes a change and returns the command's output. Later requests do not share earlier answers.

        The command writes to `record`, an open record of `CommandRecords`. It keeps `held`, an open file such as a
        lock, open until it exits, even if this process exits first. `still` is called right before the command starts;
        if it returns False, nothing is started, and CalledOff is raised. Raises SlurmError; after Unreachable the
        change may still happen.
        """
        try:
            return await self.client.call(
                self.precedence, undone, command, question=False, record=record, held=held, still=still
            )
        finally:
            self.client.in_flight.clear()

    async def node_name(self, *, again: bool = False) -> str:
        """Slurm's name of this host; `again` reads slurm.conf again. Raises SlurmError."""
        return await (self.client.node.find_again(self) if again else self.client.node.find(self))


class SlurmClient:
    """The daemon's Slurm client. It limits the calls of all parts together; each part has its own `Commands`.

    If `conf` is None, Slurm searches for slurm.conf itself. `folder` contains the programs; None for PATH. `timeout`
    is the time limit of a call in seconds. `node` is Slurm's name of this host; if empty, it is looked up by
    `hostname`.
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
        """Unanswered requests that may be shared; cleared by each change."""
        self._tasks: set[asyncio.Task[str]] = set()
        self._left: list[Process] = []

    def begin(self, key: Key, undone: str) -> asyncio.Task[str]:
        """Starts a request that others may share."""
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
        """Waits for a turn, runs a command and returns its output. Raises SlurmError."""
        done = None
        while done is None:
            async with self._turns.turn(precedence, question=question) as turn:
                self._refuse_beside_left(undone, most=AT_ONCE + (precedence is Precedence.SIGNAL))
                if still is not None and not still():
                    raise CalledOff(f"{undone}: it was cancelled before it began")
                done = None if turn.gave_way else await self._run(command, turn, record, held)
        return _answer(undone, " ".join(command[:2]), done)

    async def close(self) -> None:
        """Kills the running commands. Leaves one that cannot be killed."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _answered(self, key: Key, task: asyncio.Task[str]) -> None:
        self._tasks.discard(task)
        if self.in_flight.get(key) is task:
            del self.in_flight[key]
        if not task.cancelled():
            task.exception()  # marks it as retrieved: its callers may be gone

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
        """Raises Unreachable if `most` programs hang: another one would most likely hang, too."""
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
        raise Unreachable(
            f"{undone}: {command} {done.error}; see 'scontrol ping' and, with munge, 'munge -n' here; it is tried again"
        )
    if done.exit_code == _NOT_STARTED:
        raise Unreachable(f"{undone}: {command} cannot be started; set slurm.folder to where Slurm's commands are")
    if done.exit_code:
        raise failure(undone, command, complaint.strip() or answer)
    if len(done.stdout) >= _MOST_OUTPUT:
        raise failure(undone, command, f"more than {_MOST_OUTPUT >> 20} MiB")
    return answer


_NOT_STARTED = 127  # exit status of the shell: no such program
