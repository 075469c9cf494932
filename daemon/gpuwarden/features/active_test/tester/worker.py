"""Runs the worker process of one GPU: starts, reads, answers and ends it in any case. All CUDA is in the worker.

Nothing that it does is trusted, although it is part of gpuwarden: its lines are bounded in length and number, and its
time. A worker that hangs is killed; one that cannot be killed is left behind, and not waited for again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from gpuwarden.base.json_text import parsed
from gpuwarden_collectors.active_test.facts import Obstacle
from gpuwarden_collectors.active_test.request import Request
from gpuwarden_collectors.codec import to_wire
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.plugin.run import signal_name

MODULE = "gpuwarden_collectors.active_test.process"
COMMAND = (sys.executable, "-I", "-m", MODULE)
"""-I: modules in the working directory and PYTHON* variables have no effect."""
LINE_MOST = 1 << 20
"""Bytes: the result of a GPU with wrong words on every SM is below 64 KiB."""
LINES_MOST = 20_000
TERM_GRACE = 0.4
"""Seconds from SIGTERM to SIGKILL. Its default action ends the process at once: 63 kills took 0.31 s at most on an H100 and an H200."""
KILL_GRACE = 2.0
EXIT_GRACE = 5.0
"""Seconds that a worker may take to end after its result: 76 GB are freed in 0.05 s, a context in 0.08 s."""
TICK = 1.0
"""Seconds between two updates of a worker's remaining time."""
LATE = 1.0
"""Seconds by which a tick may be late. After a longer delay it does not count: this process was stopped together with
its workers, as by `scontrol suspend`, gang scheduling or a pause of the guest."""
_STDERR_KEPT = 2000
_FROM_OUTSIDE = (-signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)
"""Return codes of a worker that a signal from outside ended."""

Answer = Callable[[str], Awaitable[str]]
"""Maps a request of a worker ("start", "compute", "memory") to the one line that it gets."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A worker that gave no result."""

    obstacle: Obstacle
    text: str
    left_behind: int = 0
    """Its process number, if it could not be ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The user and groups that workers run as; with uid None those of this process."""

    uid: int | None = None
    gid: int | None = None
    groups: tuple[int, ...] = ()

    def arguments(self) -> dict[str, Any]:
        if self.uid is None:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": list(self.groups)}


class WorkerProcess:
    """One worker and its protocol.

    `within`: seconds that it may take, without time in which it waits for answers or the whole test is stopped.
    `started` is called with its process number. Setting `ended` ends it early.
    """

    def __init__(
        self,
        request: Request,
        environment: Mapping[str, str],
        identity: Identity,
        *,
        within: float,
        answer: Answer,
        started: Callable[[int], None],
        progress: Callable[[str], Awaitable[None]],
        ended: asyncio.Event,
    ) -> None:
        self._request = request
        self._environment = environment
        self._identity = identity
        self._within = self._left = within
        self._answer = answer
        self._started = started
        self._progress = progress
        self._ended = ended
        self._stderr = b""
        self._killed = False
        self._phase = ""

    async def run(self) -> dict[str, Any] | Failed:
        """Run the worker and return the object under "measured", or its failure. Its errors are not raised."""
        try:
            process = await asyncio.create_subprocess_exec(
                *COMMAND,
                json.dumps(to_wire(self._request)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=dict(self._environment),
                cwd="/",
                start_new_session=True,
                limit=LINE_MOST,
                **self._identity.arguments(),
            )
        except OSError as error:
            return Failed(Obstacle.UNSUPPORTED, f"cannot start a worker process: {error.strerror or error}")
        self._started(process.pid)
        reading_stderr = asyncio.create_task(self._keep_stderr(process))
        try:
            return await self._follow(process)
        finally:
            await self._end(process)
            reading_stderr.cancel()

    async def _follow(self, process: asyncio.subprocess.Process) -> dict[str, Any] | Failed:
        for _ in range(LINES_MOST):
            line = await self._line(process)
            if isinstance(line, Failed):
                return await self._given_up(process, line)
            if (result := await self._taken(process, line)) is not None:
                return result
        return Failed(Obstacle.CRASHED, f"its worker wrote more than {LINES_MOST} lines")

    async def _taken(self, process: asyncio.subprocess.Process, line: bytes) -> dict[str, Any] | Failed | None:
        """Act on one line of the worker. Returns the measurement or failure that ends the test, or None to continue."""
        match parsed(line) if line else None:
            case {"measured": dict(measured)}:
                return await self._done(process, measured)
            case {"asks": str(question)}:
                return await self._respond(process, question)
            case {"phase": str(phase)}:
                self._phase = phase[:40]
                await self._progress(self._phase)
                return None
        if not line:
            return await self._died(process)
        return Failed(Obstacle.CRASHED, f"its worker did not follow the protocol: {line[:80]!r}")

    async def _given_up(self, process: asyncio.subprocess.Process, why: Failed) -> Failed:
        """End the worker. One that cannot be ended is left behind, and not waited for again."""
        if await self._end(process):
            return why
        return Failed(
            why.obstacle,
            f"{why.text or why.obstacle.value}; its worker cannot be ended and is left behind (pid {process.pid})",
            process.pid,
        )

    async def _line(self, process: asyncio.subprocess.Process) -> bytes | Failed:
        """Return the next line; empty at the end of the stream. The worker's time runs only here."""
        assert process.stdout is not None  # noqa: S101 - it was asked for
        reading = asyncio.create_task(process.stdout.readline())
        ended = asyncio.create_task(self._ended.wait())
        try:
            while True:
                self._left -= await _waited((reading, ended), min(TICK, max(0.0, self._left)))
                if reading.done() or ended.done() or self._left <= 0.0:
                    break
            if ended.done():
                return Failed(Obstacle.INTERRUPTED, "")
            if not reading.done():
                return Failed(
                    Obstacle.HUNG, f"its worker has not ended within {self._within:.0f} s, {_at(self._phase)}"
                )
            return reading.result()
        except ValueError:  # raised by asyncio for a line beyond its limit
            return Failed(Obstacle.CRASHED, f"its worker wrote a line of more than {LINE_MOST >> 10} KiB")
        finally:
            for task in (reading, ended):
                task.cancel()
            await asyncio.gather(reading, ended, return_exceptions=True)

    async def _respond(self, process: asyncio.subprocess.Process, question: str) -> Failed | None:
        answering = asyncio.ensure_future(self._answer(question))
        ended = asyncio.create_task(self._ended.wait())
        await asyncio.wait((answering, ended), return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        if not answering.done():
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
            return Failed(Obstacle.INTERRUPTED, "")
        assert process.stdin is not None  # noqa: S101 - it was asked for
        with contextlib.suppress(OSError):  # the worker died: its stream ends
            process.stdin.write(f"{answering.result()}\n".encode())
            await process.stdin.drain()
        return None

    async def _done(self, process: asyncio.subprocess.Process, measured: dict[str, Any]) -> dict[str, Any]:
        """Return the measurement once the worker has ended, after EXIT_GRACE at most, and freed its memory."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EXIT_GRACE):
                await process.wait()
        return measured

    async def _died(self, process: asyncio.subprocess.Process) -> Failed:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KILL_GRACE):
                await process.wait()
        code = process.returncode
        how = f"by {signal_name(-code)}" if code is not None and code < 0 else f"with exit code {code}"
        lines = self._stderr.decode("utf-8", "replace").strip().splitlines()
        last = "".join(char if char.isprintable() else " " for char in (lines[-1] if lines else ""))[:200]
        # A scheduler that cancels the test signals all its processes, and this one may be the last to receive it.
        obstacle = Obstacle.INTERRUPTED if code in _FROM_OUTSIDE else Obstacle.CRASHED
        return Failed(obstacle, f"its worker ended {how} without a result{f': {last}' if last else ''}")

    async def _keep_stderr(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None  # noqa: S101 - it was asked for
        while chunk := await process.stderr.read(4096):
            self._stderr = (self._stderr + chunk)[-_STDERR_KEPT:]

    async def _end(self, process: asyncio.subprocess.Process) -> bool:
        """Send SIGTERM, then SIGKILL, to its whole group, once. Returns False if it exists after both."""
        if process.stdin is not None:
            process.stdin.close()
        for number, grace in () if self._killed else ((signal.SIGTERM, TERM_GRACE), (signal.SIGKILL, KILL_GRACE)):
            if process.returncode is not None:
                break
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await process.wait()
        self._killed = True
        return process.returncode is not None


async def _waited(tasks: Iterable[asyncio.Task[Any]], within: float) -> float:
    """Wait until one of the tasks is done, `within` seconds at most.

    Returns the seconds that this took; 0 if this process was stopped meanwhile.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    await asyncio.wait(tasks, timeout=within, return_when=asyncio.FIRST_COMPLETED)
    took = loop.time() - began
    return took if took <= within + LATE else 0.0


def _at(phase: str) -> str:
    """Return the phase in which the worker hung, for people."""
    return "CUDA did not start" if phase in ("", "start") else f"it hung in phase {phase}"
