"""When collectors read: each at its own interval, one pass at a time, whatever the others do.

A synchronous collector reads in a daemon thread of its own with a deadline. A read that misses it is left to its
thread, and no second one is begun beside it: a file that hangs costs one thread, not one a pass.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from gpuwarden_collectors.base import Clock, CollectorError, Observation, PassOutcome, SourceAbsent
from gpuwarden_collectors.facts import Stamp

Facts = TypeVar("Facts")


class ThreadCollector(Generic[Facts]):
    """`read` in a thread, with a deadline in seconds. `observe` never raises and never takes longer than the deadline."""

    def __init__(self, name: str, read: Callable[[], Facts], deadline: float, clock: Clock) -> None:
        self.name = name
        self._read = read
        self._deadline = deadline
        self._clock = clock
        self._hanging: asyncio.Future[tuple[PassOutcome, Facts | None, str]] | None = None

    async def observe(self) -> Observation[Facts]:
        started = self._clock()
        if self._hanging is not None and not self._hanging.done():
            await asyncio.wait((self._hanging,), timeout=self._deadline)
        if self._hanging is not None and not self._hanging.done():
            return self._observation(started, PassOutcome.TIMED_OUT, None, "the read before this one still hangs")
        self._hanging = self._begin()
        await asyncio.wait((self._hanging,), timeout=self._deadline)
        if not self._hanging.done():
            return self._observation(started, PassOutcome.TIMED_OUT, None, f"no answer within {self._deadline:g} s")
        answer, self._hanging = self._hanging.result(), None
        return self._observation(started, *answer)

    def _begin(self) -> asyncio.Future[tuple[PassOutcome, Facts | None, str]]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[tuple[PassOutcome, Facts | None, str]] = loop.create_future()

        def settle(answer: tuple[PassOutcome, Facts | None, str]) -> None:
            if not future.done():
                future.set_result(answer)

        def work() -> None:
            answer = self._answer()
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, answer)

        threading.Thread(target=work, name=self.name, daemon=True).start()
        return future

    def _answer(self) -> tuple[PassOutcome, Facts | None, str]:
        try:
            return PassOutcome.OBSERVED, self._read(), ""
        except SourceAbsent as absent:
            return PassOutcome.ABSENT, None, str(absent)
        except CollectorError as error:
            return PassOutcome.FAILED, None, str(error)
        except Exception as error:  # noqa: BLE001 - whatever a reader raises is a failed pass, not the end of its thread
            return PassOutcome.FAILED, None, f"{type(error).__name__}: {error}"

    def _observation(self, started: Stamp, outcome: PassOutcome, facts: Facts | None, error: str) -> Observation[Facts]:
        return Observation(
            collector=self.name, outcome=outcome, started=started, finished=self._clock(), facts=facts, error=error
        )


async def every(
    interval: float, observe: Callable[[], Awaitable[Observation[Facts]]], deliver: Callable[[Observation[Facts]], None]
) -> None:
    """A pass each `interval` seconds, for ever. A pass that takes longer delays the next; none is made up for."""
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        deliver(await observe())
        due = max(due + interval, loop.time())
        await asyncio.sleep(due - loop.time())
