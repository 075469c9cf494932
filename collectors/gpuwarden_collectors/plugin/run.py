"""Runs an untrusted program: starts it, reads its output and ends it, without blocking the event loop.

The program leads its own session and process group. When it exits, SIGKILL ends the rest of its group. On a timeout
the group gets SIGTERM and, some seconds later, SIGKILL, as does the whole session. Both happen before the leader is
reaped, because its PID cannot be reused until then. A process that escapes into another session is not waited for,
even if it holds a pipe open. With `whole`, such processes are found by an inherited environment variable and killed,
except those that clear their environment.

The program is started by `/bin/sh -c 'exec "$0" "$@"'`: if its file system is dead, the new process hangs in exec and
not the daemon, which waits for the exec of its child. This shell does not parse the command.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, cast

from gpuwarden_collectors.backoff import Backoff
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.host_files import read_bytes

_START = ("/bin/sh", "-c", 'exec "$0" "$@"')
_KEPT = 4096  # bytes of each stream
_CHUNK = 65536
_DRAIN_PAUSE = 0.01  # seconds between two discarded chunks: excessive output costs the event loop less than 1 %
_POLL = (0.005, 0.1)  # shortest and longest seconds between two checks of the process
_TERM_GRACE = 2.0
_KILL_GRACE = 2.0
_MARK = "GPUWARDEN_RUN"
_SEARCHES = 3
"""Number of searches for escaped processes: a killed one may have started another meanwhile."""
_SEARCHED_WITHIN = 2.0
"""Seconds for all searches. Reading an environment takes a lock of the process, which may be held for long."""
_ENVIRONMENT_MOST = 128 << 10  # bytes
_unreaped: list[subprocess.Popen[bytes]] = []
"""Processes that outlived their run: each start reaps those that have exited since."""


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one run.

    If `exit_code` is None, the program did not exit by itself, and `error` is the reason. `left` is the process if it
    could not be killed.
    """

    exit_code: int | None
    stdout: bytes = b""
    stderr: bytes = b""
    error: str = ""
    left: Process | None = None


class _Stream:
    """Keeps the first bytes of a pipe; reads and discards the rest slowly enough not to load the event loop."""

    def __init__(self, pipe: IO[bytes], most: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._pipe = pipe
        self._most = most
        self.kept = b""
        os.set_blocking(pipe.fileno(), False)
        self._listen()

    def _listen(self) -> None:
        if not self._pipe.closed:
            self._loop.add_reader(self._pipe.fileno(), self._readable)

    def _readable(self) -> None:
        if not self._read():
            self.close()
        elif len(self.kept) == self._most:
            self._loop.remove_reader(self._pipe.fileno())
            self._loop.call_later(_DRAIN_PAUSE, self._listen)

    def _read(self) -> bool:
        """Reads a chunk of the stream. False at its end."""
        try:
            data = os.read(self._pipe.fileno(), _CHUNK)
        except BlockingIOError:
            return True
        self.kept += data[: self._most - len(self.kept)]
        return bool(data)

    def close(self) -> None:
        """Reads the available data, then closes the pipe."""
        if not self._pipe.closed:
            self._read()
            self._loop.remove_reader(self._pipe.fileno())
            self._pipe.close()


@contextlib.contextmanager
def _input(standard_input: bytes | int) -> Iterator[int]:
    """Yields a descriptor for the standard input. Bytes go into a memory file, which unlike a pipe never blocks."""
    if isinstance(standard_input, int) or not standard_input:
        yield subprocess.DEVNULL if isinstance(standard_input, bytes) else standard_input
        return
    with os.fdopen(os.memfd_create("given"), "r+b") as file:
        file.write(standard_input)
        file.seek(0)
        yield file.fileno()


class Process:
    """A started program. Raises OSError if not even the shell can be started.

    `standard_input` is its content, or an open descriptor.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        kept: int = _KEPT,
        standard_input: bytes | int = b"",
    ) -> None:
        _unreaped[:] = [process for process in _unreaped if process.poll() is None]
        pipe = subprocess.PIPE
        with _input(standard_input) as stdin:
            self._process = subprocess.Popen(  # noqa: S603 - to run what the site configured is the purpose
                (*_START, *command),
                stdin=stdin,
                stdout=pipe,
                stderr=pipe,
                bufsize=0,
                env=environment,
                cwd="/",
                start_new_session=True,
            )
        pipes = cast("tuple[IO[bytes], IO[bytes]]", (self._process.stdout, self._process.stderr))  # both were asked for
        self.stdout, self.stderr = (_Stream(pipe, kept) for pipe in pipes)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ended(self, within: float) -> bool:
        """True if the process exits within `within` seconds. Does not reap it."""
        if self.gone():
            return True
        try:
            handle = os.pidfd_open(self.pid)
        except OSError:  # Linux before 5.3, or out of descriptors
            return await self._polled(within)
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(handle, ended.set)
        try:
            async with asyncio.timeout(within):
                await ended.wait()
        except TimeoutError:
            pass
        finally:
            loop.remove_reader(handle)
            os.close(handle)
        return self.gone()

    async def _polled(self, within: float) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within
        poll = Backoff(*_POLL, factor=1.5)
        while not self.gone():
            left = deadline - loop.time()
            if left <= 0:
                return False
            await asyncio.sleep(min(poll.failed(), left))
        return True

    def gone(self) -> bool:
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return self._process.returncode is not None or os.waitid(os.P_PID, self.pid, flags) is not None

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the whole process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def kill_session(self) -> None:
        """Kills every process of the session, in all process groups, as a shell with job control creates them."""
        for pid in _members(self.pid):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def reap(self) -> int | None:
        """Closes the pipes. Returns the exit code, negative for a signal, or None if the process cannot be killed."""
        self.stdout.close()
        self.stderr.close()
        code = self._process.poll()
        if code is None:
            _unreaped.append(self._process)
        return code


async def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    timeout: float,  # noqa: ASYNC109 - a cancelled task could not say what it left
    *,
    kept: int = _KEPT,
    standard_input: bytes | int = b"",
    left: Callable[[Process], object] | None = None,
    whole: bool = False,
) -> Run:
    """Runs a program; returns its exit code and `kept` bytes of its output. Takes `timeout` plus some seconds.

    Never raises because of the program. If the task is cancelled, the group is killed first. `left` is called with a
    process that cannot be killed, also after a cancellation. `whole`: kill processes in other sessions, too.
    """
    mark = secrets.token_hex(16) if whole else ""
    try:
        process = Process(command, {**environment, _MARK: mark} if whole else environment, kept, standard_input)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the command
        return Run(None, error=f"cannot be started: {error}")
    in_time = False
    try:
        in_time = await process.ended(timeout)
        if not in_time:
            process.signal(signal.SIGTERM)
            await process.ended(_TERM_GRACE)
    finally:
        process.signal(signal.SIGKILL)
        if not in_time:
            process.kill_session()
        ended = False
        try:
            ended = await process.ended(_KILL_GRACE)
        finally:
            code = process.reap()
            if not ended and left is not None:
                left(process)
            if whole:
                await _end_escaped(mark)
    output = process.stdout.kept, process.stderr.kept
    if not ended:
        stuck = f"has not ended within {timeout:g} s and cannot be killed (pid {process.pid}, stuck in the kernel)"
        return Run(None, *output, stuck, left=process)
    if not in_time:
        return Run(None, *output, f"has not ended within {timeout:g} s")
    if code is None or code < 0:
        return Run(None, *output, f"died by {signal_name(-(code or 0))}")
    return Run(code, *output)


async def _end_escaped(mark: str) -> None:
    """Kills the processes that inherited the mark, within _SEARCHED_WITHIN. Continues if the task is cancelled."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def search() -> None:
        for _ in range(_SEARCHES):
            if not _killed(f"{_MARK}={mark}".encode()):
                break
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(done.set)

    threading.Thread(target=search, name="escaped", daemon=True).start()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_SEARCHED_WITHIN):
            await done.wait()


def _killed(variable: bytes, proc: str = "/proc") -> int:
    """Kills the processes with this variable in their environment and returns how many.

    Skips those in D state: reading their environment may hang.
    """
    killed = 0
    for name in filter(str.isdecimal, os.listdir(proc)):  # noqa: PTH208 - a Path for each process costs more than the call
        with contextlib.suppress(OSError, IndexError):
            handle = os.pidfd_open(int(name))
            try:
                state = read_bytes(f"{proc}/{name}/stat").rpartition(b") ")[2][:1]
                if state in (b"D", b"Z", b"X"):
                    continue
                if variable in read_bytes(f"{proc}/{name}/environ", _ENVIRONMENT_MOST).split(b"\0"):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                    killed += 1
            finally:
                os.close(handle)
    return killed


def _members(session: int, proc: str = "/proc") -> Iterator[int]:
    """Yields the processes of a session, by the sixth field of /proc/PID/stat (proc(5)). Reading it never blocks."""
    for name in filter(str.isdecimal, os.listdir(proc)):  # noqa: PTH208 - a Path for each process costs more than the call
        with contextlib.suppress(OSError, IndexError):
            fields = read_bytes(f"{proc}/{name}/stat").rpartition(b") ")[2].split()
            if int(fields[3]) == session:
                yield int(name)


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
