"""One worker process from the daemon's side: its pipes, the current request, its exit.

The event loop reads the pipes directly, 64 KiB at a time: a flood of events does not starve other tasks, and no task or
thread waits for a process that cannot be killed. Each message to the worker fits into one atomic write.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gpuwarden_collectors.codec import to_wire
from gpuwarden_collectors.worker.frames import Frame, FrameBuffer, FrameError, Kind, pack
from gpuwarden_collectors.worker.hung import Hung
from gpuwarden_collectors.worker.in_flight import InFlight, Page
from gpuwarden_collectors.worker.life import Fate, WorkerLimits

_CHUNK = 65536  # also the capacity of a pipe: one read empties it
_POLL = 0.02  # seconds between two checks of a process that is about to end
_STDERR_KEPT = 2000
_GOOD = frozenset({Kind.FACTS, Kind.CHANGES})
_ANSWERS = _GOOD | {Kind.ABSENT, Kind.FAILED}


class Child:
    """A running worker. `due`: loop time by which the current step, connecting or reading, must be complete.

    `answered`: it has returned facts from a working library. Until then an answer may take as long as the
    initialisation, which may continue during a read: NVML initialises a GPU at its first use (nvml.h,
    nvmlDeviceGetHandleByIndex_v2). This does not apply if parts have hung before.

    `over`: no more data will arrive, because the process exited or its stream broke. `fate`: why it was left behind, if
    it was. `around`: the hung parts in the current or last request. `partial`: the part of the answer so far.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        start: bytes,
        limits: WorkerLimits,
        on_event: Callable[[Frame], None],
    ) -> None:
        """Starts the process; raises OSError if that fails. `start` is the first frame."""
        self._loop = asyncio.get_running_loop()
        self._limits = limits
        self._on_event = on_event
        self._buffer = FrameBuffer()
        self._stderr = b""
        self._changed = asyncio.Event()
        self._sequence = 0
        self._asked = False
        self._answer: Frame | None = None
        self._connected = self.answered = False
        self.created = self._loop.time()
        self.due = float("inf")
        self.over = False
        self.fate: Fate | None = None
        self.around: tuple[Hung, ...] = ()
        self.partial: Frame | None = None
        self._page, self._process = _started(command, environment)
        process = self._process
        self._pipes = [pipe for pipe in (process.stdin, process.stdout, process.stderr) if pipe is not None]
        self._stdin, self._stdout, self._errors = (pipe.fileno() for pipe in self._pipes)
        for descriptor in (self._stdin, self._stdout, self._errors):
            os.set_blocking(descriptor, False)
        self._loop.add_reader(self._stdout, self._on_frames)
        self._loop.add_reader(self._errors, self._on_errors)
        self._write(start)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def connecting(self) -> bool:
        return not self._connected

    @property
    def _reading_time(self) -> float:
        return self._limits.deadline if self.answered or self.around else self._limits.init_deadline

    @property
    def idle(self) -> bool:
        return not self._asked

    def ended(self) -> bool:
        """True if the process has exited, even if the event loop has not processed that yet."""
        if not self.over and self._process.poll() is not None:
            self._on_frames()
            self._end_stream()
        return self.over

    def ask(self, now: float, held: int | None = None, hung: tuple[Hung, ...] = ()) -> None:
        """Sends a request, unless the last one is unanswered: a later pass may receive that answer.

        `held` is the number of the answer whose facts the daemon has; the worker then sends only changes since it.
        """
        if self._asked:
            return
        self._asked = True
        self.around, self.partial = hung, None
        self._sequence += 1
        self.due = now + (self._reading_time if self._connected else self._limits.init_deadline)
        self._write(pack(Kind.ASK, self._sequence, {"held": held, "hung": [to_wire(each) for each in hung]}))

    async def answer(self, until: float) -> Frame | None:
        """Returns FACTS, CHANGES, ABSENT or FAILED.

        Returns None if none arrives by `until` (loop time) or `due`, or if the worker is over.
        """
        while self._answer is None and not self.over:
            rest = min(until, self.due) - self._loop.time()
            if rest <= 0:
                return None
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(rest):
                    await self._changed.wait()
        answer, self._answer = self._answer, None
        self._asked = self._asked and answer is None
        return answer

    def in_flight(self) -> InFlight:
        """Returns the call in progress in the worker, if its reader records calls."""
        return self._page.read()

    def hang_up(self) -> None:
        """Closes its stdin, which makes it close the library and exit."""
        self._pipes[0].close()

    def send_signal(self, number: signal.Signals) -> None:
        # Popen first checks that the child still exists, so that a reused PID is not signalled.
        self._process.send_signal(number)

    async def gone(self, within: float) -> bool:
        """True if the process exited within `within` seconds; it is then reaped."""
        end = self._loop.time() + within
        while self._process.poll() is None:
            if self._loop.time() >= end:
                return False
            await asyncio.sleep(_POLL)
        return True

    @property
    def status(self) -> int | None:
        """Returns the exit status, negative for a signal; None while the process exists."""
        return self._process.poll()

    def epitaph(self) -> str:
        """Returns how the worker exited, with the last line that it or its library wrote to stderr."""
        if not self._pipes[2].closed:
            self._on_errors()
        lines = self._stderr.decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return _end_of(self.status) + (f": {last}" if last else "")

    def release(self) -> None:
        """Closes the pipes. If the process still exists, its stdin reaches the end."""
        self._loop.remove_reader(self._stdout)
        self._loop.remove_reader(self._errors)
        for pipe in self._pipes:
            pipe.close()
        self._page.close()

    def _write(self, frame: bytes) -> None:
        try:
            os.write(self._stdin, frame)
        except OSError:  # it exited, or has not read thousands of requests
            self._end_stream()

    def _on_frames(self) -> None:
        try:
            data = os.read(self._stdout, _CHUNK)
            for frame in self._buffer.feed(data):
                self._take(frame)
        except BlockingIOError:
            return
        except FrameError as error:
            self._stderr += f"\n{error}".encode()
            data = b""
        if not data:
            self._end_stream()

    def _take(self, frame: Frame) -> None:
        if frame.kind is Kind.EVENT:
            self._on_event(frame)
        elif frame.kind is Kind.CONNECTED:
            self._connected = True
            self.due = self._loop.time() + self._reading_time
            self._changed.set()
        elif frame.kind is Kind.PARTIAL and self._asked and frame.sequence == self._sequence:
            self.partial = frame
        elif frame.kind in _ANSWERS and self._asked and frame.sequence == self._sequence:
            self._connected = frame.kind in _GOOD
            self._answer = frame
            self._changed.set()

    def _end_stream(self) -> None:
        self._loop.remove_reader(self._stdout)
        self.over = True
        self._changed.set()

    def _on_errors(self) -> None:
        try:
            data = os.read(self._errors, _CHUNK)
        except BlockingIOError:
            return
        self._stderr = (self._stderr + data)[-_STDERR_KEPT:]
        if not data:
            self._loop.remove_reader(self._errors)


def _started(command: Sequence[str], environment: Mapping[str, str]) -> tuple[Page, subprocess.Popen[bytes]]:
    """Starts the process and returns it with the page that it writes. Raises OSError.

    The page's descriptor is the last argument of the process.
    """
    page, descriptor = Page.shared()
    pipe = subprocess.PIPE
    try:
        return page, subprocess.Popen(  # noqa: S603 - the command is our own
            [*command, str(descriptor)],
            env=environment,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            bufsize=0,
            pass_fds=(descriptor,),
        )
    except OSError:
        page.close()
        raise
    finally:
        os.close(descriptor)


def _end_of(status: int | None) -> str:
    if status is None:
        return "broke the stream of frames"
    if status >= 0:
        return f"exited with status {status}"
    signal_names = {number.value: number.name for number in signal.Signals}
    return f"died by {signal_names.get(-status, f'signal {-status}')}"


def in_uninterruptible_sleep(proc: Path, pid: int) -> bool:
    """True if a thread of the process is in D state, by <proc>/<pid>/task/*/stat; False for one that is gone."""
    with contextlib.suppress(OSError):
        return any(_state(thread / "stat") == b"D" for thread in (proc / str(pid) / "task").iterdir())
    return False


def _state(stat: Path) -> bytes:
    with contextlib.suppress(OSError):
        # proc_pid_stat(5): pid (comm) state; the comm may hold spaces and parentheses of its own
        return stat.read_bytes().rpartition(b")")[2][1:2]
    return b""
