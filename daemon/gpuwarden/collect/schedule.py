"""When collectors read: each at its own interval, one pass at a time, independent of the others.

A synchronous collector reads in its own daemon thread, with a deadline. A read that misses it stays in its thread, and
no second one is started meanwhile: a file that hangs occupies one thread, not one per pass.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Generic, TypeVar

from gpuwarden.base.threads import detached
from gpuwarden_collectors.base import Clock, CollectorError, Observation, PassOutcome, SourceAbsent
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

Facts = TypeVar("Facts")


class _Reads(Generic[Facts]):
    """Turns the outcome of a read into a pass."""

    def __init__(self, name: str, deadline: float, clock: Clock) -> None:
        self.name = name
        self._deadline = deadline
        self._clock = clock

    def _failed(self, started: Stamp, error: Exception) -> Observation[Facts]:
        """Turn an exception of a reader into a failed pass: no exception ends all passes."""
        if isinstance(error, SourceAbsent):
            return self._observation(started, PassOutcome.ABSENT, error=str(error))
        text = str(error) if isinstance(error, CollectorError) else f"{type(error).__name__}: {error}"
        return self._observation(started, PassOutcome.FAILED, error=text)

    def _observation(
        self, started: Stamp, outcome: PassOutcome, facts: Facts | None = None, error: str = ""
    ) -> Observation[Facts]:
        return Observation(
            collector=self.name, outcome=outcome, started=started, finished=self._clock(), facts=facts, error=error
        )


class LoopCollector(_Reads[Facts]):
    """Awaits `read` on the loop and cancels it after `deadline` seconds. `observe` never raises."""

    def __init__(
        self, name: str, read: Callable[[], Coroutine[Any, Any, Facts]], deadline: float, clock: Clock
    ) -> None:
        super().__init__(name, deadline, clock)
        self._read = read

    async def observe(self) -> Observation[Facts]:
        started = self._clock()
        try:
            async with asyncio.timeout(self._deadline) as limit:
                return self._observation(started, PassOutcome.OBSERVED, await self._read())
        except Exception as error:  # noqa: BLE001 - see _failed
            if not limit.expired():
                return self._failed(started, error)
            late = f"{self.name} has not responded within {self._deadline:g} s"
            return self._observation(started, PassOutcome.TIMED_OUT, error=late)


class ThreadCollector(_Reads[Facts]):
    """Calls `read` in a thread, with a deadline in seconds. `observe` never raises and never takes longer than the deadline."""

    def __init__(self, name: str, read: Callable[[], Facts], deadline: float, clock: Clock) -> None:
        super().__init__(name, deadline, clock)
        self._read = read
        self._reading: asyncio.Future[Facts] | None = None
        self._begun = clock()

    async def observe(self) -> Observation[Facts]:
        started = self._clock()
        if self._reading is None:
            self._reading, self._begun = detached(self.name, self._read), started
        await asyncio.wait((self._reading,), timeout=self._deadline)
        if not self._reading.done():
            error = f"{self.name} has not responded within {self._deadline:g} s; the read is left to hang in its thread"
            return self._observation(started, PassOutcome.TIMED_OUT, error=error)
        started = self._begun  # a read left over from an earlier pass began before this one
        reading, self._reading = self._reading, None
        try:
            return self._observation(started, PassOutcome.OBSERVED, reading.result())
        except Exception as error:  # noqa: BLE001 - see _failed
            return self._failed(started, error)


async def every(
    interval: float,
    observe: Callable[[], Awaitable[Observation[Facts]]],
    deliver: Callable[[Observation[Facts]], None],
    wake: asyncio.Event | None = None,
) -> None:
    """Make a pass every `interval` seconds, and one at once when `wake` is set, forever.

    A pass that takes longer delays the next; missed passes are not made up for.
    """
    loop = asyncio.get_running_loop()
    wake = wake or asyncio.Event()
    due = loop.time()
    while True:
        wake.clear()
        deliver(await observe())
        if loop.time() >= due:  # otherwise it was woken, and the next regular pass keeps its time
            due = max(due + interval, loop.time())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(due):
                await wake.wait()


Deliver = Callable[[Observation[Any]], None]


@dataclass(frozen=True, slots=True)
class Source:
    """One collector as the daemon runs it. `run` delivers passes forever; `once` makes a single one.

    `pace`: the most seconds between two passes, even if its source hangs.
    """

    name: str
    run: Callable[[Deliver], Coroutine[Any, Any, None]]
    once: Callable[[], Awaitable[Observation[Any]]]
    pace: float


def polled(
    name: str,
    interval: float,
    deadline: float,
    observe: Callable[[], Awaitable[Observation[Any]]],
    wake: asyncio.Event | None = None,
) -> Source:
    """A source that is read every `interval` seconds, and at once when `wake` is set; a pass ends within `deadline`."""
    return Source(name, partial(every, interval, observe, wake=wake), observe, interval + deadline)
