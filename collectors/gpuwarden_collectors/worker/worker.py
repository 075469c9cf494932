"""A collector whose reader runs in a worker process, because its library may hang, crash or return wrong data.

`observe` is one pass and returns within the deadline even if the library hangs. A worker that missed its deadline is
ended in the background (rules: life.py), and the next pass starts another one. Two deadlines apply: `deadline` to an
answer of a connected worker, `init_deadline` to the initialisation of the library. Passes during an initialisation also
end after `deadline`; they count as missed if any worker of this collector has answered before. Both begin once the
process has loaded its code: before that nothing counts as missed.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Generic

from gpuwarden_collectors.base import Clock, Facts, Observation, PassOutcome, WorkerReport, host_clock
from gpuwarden_collectors.changes import applied
from gpuwarden_collectors.codec import from_wire, to_wire
from gpuwarden_collectors.event_facts import HostEvent
from gpuwarden_collectors.token_bucket import TokenBucket
from gpuwarden_collectors.worker.child import Child, in_uninterruptible_sleep
from gpuwarden_collectors.worker.frames import Frame, Kind, pack
from gpuwarden_collectors.worker.hung import HungParts
from gpuwarden_collectors.worker.in_flight import InFlight
from gpuwarden_collectors.worker.life import Fate, WorkerLife, WorkerLimits

_EXIT_TIME = 1.0  # most seconds from the end of the stream to the exit of the process

_OF_GRACE = 0.2
"""Share of the grace period after which a worker in D state counts as stuck; own choice, a second by default. One that
waits for a disk, as when memory is exhausted, exits on SIGTERM."""
_LOADED_WITHIN = 60.0
"""Most seconds for a process to load its code, which takes half a second of processor time; own choice."""
_STUCK_CHECKS, _STUCK_CHECK = 5, 0.2  # a process that waits for a disk is also in D state, but not for a second
# Variables of the service manager are removed, so that a worker cannot notify it in the daemon's name.
_SERVICE_VARIABLES = frozenset(
    ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "MAINPID")
)
_Pass = tuple[PassOutcome, Facts | None, str]


class Worker(Generic[Facts]):
    """One reader in its own process. Call `observe` from the main thread, because the kernel ends the worker with the
    thread that started it; calls must not overlap.

    `reader` names a `process.Reader` as `module:Class`; `options` is a dataclass for its constructor (see codec). After
    a hang, the next process reads the hung part last, or skips it for a while (see `hung`), and a pass without a
    complete answer returns the partial one. `on_event` is called with events at once, up to the rate in `limits`.
    """

    def __init__(
        self,
        name: str,
        reader: str,
        facts_type: type[Facts],
        *,
        limits: WorkerLimits,
        on_event: Callable[[HostEvent], None],
        options: object = None,
        clock: Clock = host_clock,
        proc: Path = Path("/proc"),
        python: str = sys.executable,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """Raises ValueError if the options do not fit into a frame."""
        self._name = name
        self._facts_type = facts_type
        self._limits = limits
        self._on_event = on_event
        self._clock = clock
        self._proc = proc
        # -P: modules in the working directory must not shadow gpuwarden's
        self._command = (python, "-P", "-m", "gpuwarden_collectors.worker.process", reader, str(os.getpid()))
        self._environment = environment
        self._start = _start_frame(options)
        self._life = WorkerLife(limits)
        self._hung = HungParts(limits)
        self._bucket = TokenBucket(limits.events_burst, limits.events_every, 0.0)
        self._child: Child | None = None
        self._held: tuple[int, Facts] | None = None  # the last facts of this child, and the number of its answer
        self._leaving: list[Child] = []  # being ended, or left behind
        self._ending: asyncio.Task[None] | None = None
        self.events_dropped = 0

    async def observe(self) -> Observation[Facts]:
        """Runs one pass; returns within the deadline, plus up to a second for a worker that exits or is ended."""
        started = self._clock()
        self._life.asked(asyncio.get_running_loop().time(), started)
        outcome, facts, error = await self._pass()
        self._life.last_error = error or self._life.last_error
        return Observation(
            collector=self._name,
            outcome=outcome,
            started=started,
            finished=self._clock(),
            facts=facts,
            error=error,
            worker=self._report(),
        )

    async def close(self) -> None:
        """Ends the worker: by request, otherwise as after a missed deadline.

        Takes at most five times the grace period, or one to two seconds for a worker in D state. A worker that cannot
        be killed is left to the kernel, which sends SIGTERM when this process exits. Call it after the last `observe`
        has returned or was cancelled.
        """
        if self._ending is not None and not await self._gone_or_stuck(self._ending, self._leaving):
            self._ending.cancel()
            for child in self._leaving:
                child.fate = child.fate or Fate.ABANDON
        if self._child is not None:
            child = self._child
            self._part(child)
            child.hang_up()
            gone = asyncio.create_task(child.gone(self._limits.term_grace))
            if not await self._gone_or_stuck(gone, [child]):
                gone.cancel()
                child.send_signal(signal.SIGTERM)
                child.fate = Fate.ABANDON
            self._reap()
        for child in self._leaving.copy():
            if child.fate is None:
                await self._end(child)
            child.release()
        self._leaving.clear()

    async def rest(self) -> bool:
        """Ends the worker without counting a failure; the next pass starts another. Call it between two passes.

        True if no process of this worker is left. Takes at most three times the grace period.
        """
        if self._child is not None:
            child = self._child
            self._part(child)
            child.hang_up()
            if not await child.gone(self._limits.term_grace):
                self._dismiss(child)
        if self._ending is not None:
            await asyncio.wait({self._ending}, timeout=2 * self._limits.term_grace)
        self._reap()
        return not self._leaving

    async def _gone_or_stuck(self, end: asyncio.Task[Any], children: Collection[Child]) -> bool:
        """Waits until `end` is done and returns True.

        Returns False once one of `children` was in D state in each of `_STUCK_CHECKS` checks in a row.
        """
        checks = 0
        while checks < _STUCK_CHECKS:
            await asyncio.wait((end,), timeout=_STUCK_CHECK)
            if end.done():
                return True
            stuck = any(in_uninterruptible_sleep(self._proc, child.pid) for child in children)
            checks = checks + 1 if stuck else 0
        return False

    async def _pass(self) -> _Pass[Facts]:
        now = asyncio.get_running_loop().time()
        limit = now + self._limits.deadline
        child = await self._ready(limit)
        if not isinstance(child, Child):
            return child
        hung = self._hung.question(now, {each.pid for each in self._leaving})
        child.ask(now, None if self._held is None else self._held[0], hung)
        frame = await child.answer(limit)
        if frame is not None:
            return self._answered(frame, child)
        if child.over:
            return PassOutcome.FAILED, None, await self._lost(child)
        late = self._late(child, limit)
        if self._ending is not None and self._sleeps_in_kernel():
            await asyncio.wait({self._ending}, timeout=_OF_GRACE * self._limits.term_grace)
        return late

    async def _ready(self, limit: float) -> Child | _Pass[Facts]:
        """Returns a running worker, or the result of this pass without one."""
        loop = asyncio.get_running_loop()
        if self._ending is not None:
            await asyncio.wait({self._ending}, timeout=limit - loop.time())
            if not self._ending.done():
                return self._unanswered("the worker that does not answer is still being ended")
            self._ending = None
        self._reap()
        if self._child is not None and self._child.ended():
            error = await self._lost(self._child)
            if self._ending is not None:
                return PassOutcome.FAILED, None, error
        if self._child is not None:
            return self._child
        if len(self._leaving) > 1 or any(child.fate is Fate.PARK for child in self._leaving):
            return self._unanswered(self._left_behind())
        pause = self._life.pause(loop.time())
        if pause > 0:
            how, error = self._life.failure
            error = f"{error}; the next worker starts in {pause:.0f} s"
            return self._unanswered(error) if how is PassOutcome.TIMED_OUT else (how, None, error)
        return self._started()

    def _started(self) -> Child | _Pass[Facts]:
        now = asyncio.get_running_loop().time()
        environment = {key: value for key, value in self._environment.items() if key not in _SERVICE_VARIABLES}
        try:
            self._child = Child(self._command, environment, self._start, self._limits, self._event)
        except OSError as cause:
            error = f"cannot start a worker process: {cause}"
            self._life.failed(now, PassOutcome.FAILED, error)
            return PassOutcome.FAILED, None, error
        self._held = None
        self._life.starts += 1
        return self._child

    def _answered(self, frame: Frame, child: Child) -> _Pass[Facts]:
        self._life.answered(self._clock())
        held, self._held = self._held, None
        try:
            value = frame.value()
            if frame.kind in (Kind.FACTS, Kind.CHANGES):
                if frame.kind is Kind.CHANGES and held is not None:
                    facts = applied(self._facts_type, held[1], value)
                else:
                    facts = from_wire(self._facts_type, value)
                self._held = frame.sequence, facts
                child.answered = getattr(facts, "problem", None) is None
                self._hung.answered(child.around)
                return PassOutcome.OBSERVED, facts, ""
        except (ValueError, RecursionError) as cause:
            return PassOutcome.FAILED, None, f"the answer of the worker cannot be read: {cause}"
        return PassOutcome.ABSENT if frame.kind is Kind.ABSENT else PassOutcome.FAILED, None, str(value)

    async def _lost(self, child: Child) -> str:
        """Reaps a worker whose stream has ended, and returns how it ended."""
        self._part(child)
        gone = await child.gone(_EXIT_TIME)
        error = f"worker {child.pid} {child.epitaph()}"
        if child.status != 0 or not child.idle:  # otherwise it requested a replacement
            self._life.failed(asyncio.get_running_loop().time(), PassOutcome.FAILED, error)
        if gone:
            self._reap()
        else:
            self._dismiss(child)
        return error

    def _late(self, child: Child, limit: float) -> _Pass[Facts]:
        """Returns a partial or missing answer at the end of a pass; ends the worker if its deadline has passed, too."""
        expected = "initialisation of the library" if child.connecting else "answer"
        now, at = asyncio.get_running_loop().time(), child.in_flight()
        if at.since == 0.0:
            return self._unstarted(child, now)
        if child.due > limit and (child.connecting or now - at.since < self._limits.deadline):
            error = f"no {expected} yet; worker {child.pid} has {child.due - limit:.1f} s left"
            if child.partial is None and not (child.connecting and self._life.ever_answered):
                return PassOutcome.TIMED_OUT, None, error  # it still proceeds from part to part
            return self._in_part(child) or self._unanswered(error)
        allowed = self._limits.init_deadline if child.due <= limit and not child.answered else self._limits.deadline
        error = f"worker {child.pid}: {_silence(expected, at)} within {allowed:g} s"
        self._hung.missed(at, child.pid, now)
        partial = self._in_part(child)
        self._life.failed(now, PassOutcome.TIMED_OUT, error)
        self._part(child)
        self._dismiss(child)
        if partial is not None:
            self._life.timeouts += 1
            return partial
        self._life.silent_at(_silence(expected, at))
        return self._unanswered(error)

    def _unstarted(self, child: Child, now: float) -> _Pass[Facts]:
        """Returns a pass for which the process has not loaded its code yet: the host is busy, and no driver is silent."""
        error = f"worker {child.pid} has not started yet: the host lacks processor time, or its disk is slow"
        self._life.unasked(now)
        child.due = now + self._limits.init_deadline
        if now < child.created + _LOADED_WITHIN:
            return PassOutcome.TIMED_OUT, None, error
        self._life.failed(now, PassOutcome.FAILED, error)
        self._part(child)
        self._dismiss(child)
        return PassOutcome.FAILED, None, error

    def _in_part(self, child: Child) -> _Pass[Facts] | None:
        """Returns the partial facts reported before a risky read, or None."""
        if child.partial is None:
            return None
        try:
            facts = from_wire(self._facts_type, child.partial.value())
        except (ValueError, RecursionError):
            return None
        self._life.answered(self._clock())
        return PassOutcome.OBSERVED, facts, ""

    def _unanswered(self, error: str) -> _Pass[Facts]:
        self._life.unanswered(asyncio.get_running_loop().time())
        return PassOutcome.TIMED_OUT, None, error

    def _part(self, child: Child) -> None:
        self._child = None
        self._leaving.append(child)

    def _dismiss(self, child: Child) -> None:
        self._ending = asyncio.create_task(self._end(child), name=f"{self._name}: end of worker {child.pid}")

    async def _end(self, child: Child) -> None:
        """Sends SIGTERM, waits for the grace period, then applies the rules. Takes at most twice the grace period."""
        child.hang_up()
        child.send_signal(signal.SIGTERM)
        if not await child.gone(self._limits.term_grace):
            now = asyncio.get_running_loop().time()
            child.fate = self._life.after_grace(now, stuck=in_uninterruptible_sleep(self._proc, child.pid))
            if child.fate is Fate.KILL:
                self._hung.killed(child.pid, now)
                child.send_signal(signal.SIGKILL)
                if not await child.gone(self._limits.term_grace):
                    child.fate = Fate.ABANDON
        self._reap()

    def _reap(self) -> None:
        for child in [each for each in self._leaving if each.status is not None]:
            child.release()
            self._leaving.remove(child)

    def _left_behind(self) -> str:
        pids = ", ".join(str(child.pid) for child in self._leaving)
        return (
            f"no worker is started while an earlier one cannot be ended (pid {pids}): "
            "see the kernel log for the driver; the host may need a reboot"
        )

    def _report(self) -> WorkerReport:
        life = self._life
        present = [child for child in (self._child, *self._leaving) if child is not None]
        fates = {child.fate for child in self._leaving}
        return WorkerReport(
            pid=present[0].pid if present else None,
            missed=life.missed,
            silent_since=life.silent_since,
            ever_answered=life.ever_answered,
            stuck=life.missed > 0 and self._sleeps_in_kernel(),
            abandoned=Fate.ABANDON in fates,
            parked=Fate.PARK in fates,
            restarts=max(0, life.starts - 1),
            kills=life.kills,
            timeouts=life.timeouts,
            crashes=life.crashes,
            events_dropped=self.events_dropped,
            last_error=life.last_error,
            silence=life.silence,
        )

    def _sleeps_in_kernel(self) -> bool:
        return any(in_uninterruptible_sleep(self._proc, child.pid) for child in self._leaving)

    def _event(self, frame: Frame) -> None:
        loop = asyncio.get_running_loop()
        if self._bucket.wait(loop.time()):
            self.events_dropped += 1
            return
        try:
            event: HostEvent = from_wire(HostEvent, frame.value())
        except (ValueError, RecursionError):
            self.events_dropped += 1
        else:
            loop.call_soon(
                self._on_event, event
            )  # a fault in there is the loop's to report, and leaves the stream whole


def _silence(expected: str, at: InFlight) -> str:
    return f"no {expected} {at}".rstrip()


def _start_frame(options: object) -> bytes:
    kind = type(options)
    name = "" if options is None else f"{kind.__module__}:{kind.__qualname__}"
    frame = pack(Kind.START, value={"options_type": name, "options": None if options is None else to_wire(options)})
    if len(frame) > select.PIPE_BUF:
        raise ValueError(f"the options of a worker take {len(frame)} bytes; a pipe takes {select.PIPE_BUF} at once")
    return frame
