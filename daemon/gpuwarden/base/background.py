"""Writes that may block, off the event loop.

A filesystem can freeze and the reader of a pipe can stop; a write to either then takes forever and cannot be
interrupted. Such writes are jobs of a writer thread: submitting one never waits, what does not fit is dropped and
counted, and `stalled_for` is how long the thread has been blocked. The thread is a daemon thread: the interpreter
does not wait for it at exit.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable

Job = Callable[[], None]
_POLL = 0.002  # seconds between two checks of the thread


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class BackgroundWriter:
    """One thread that runs jobs in the order of their submission.

    At most `capacity` jobs wait. A further one is dropped; with `newest_wins` it replaces the oldest waiting one, so
    that a capacity of 1 always keeps the newest state. Exceptions of jobs are passed to `on_error`, in the thread.
    """

    def __init__(
        self,
        name: str,
        capacity: int,
        *,
        on_error: Callable[[Exception], None],
        newest_wins: bool = False,
        clock: Callable[[], float] = boottime,
    ) -> None:
        self.dropped = 0
        self._capacity = capacity
        self._on_error = on_error
        self._newest_wins = newest_wins
        self._clock = clock
        self._queue: deque[tuple[int, float, Job]] = deque()
        self._submitted = 0  # number of the newest job
        self._settled = 0  # number of the newest finished job; earlier ones are finished or were replaced
        self._working_since: float | None = None
        self._closing = False
        # Reentrant, since a finalizer that logs may run inside `submit`.
        self._changed = threading.Condition(threading.RLock())
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> bool:
        """Queue a job; False if it was dropped. Never blocks."""
        with self._changed:
            full = len(self._queue) >= self._capacity
            if self._closing or (full and not self._newest_wins):
                self.dropped += 1
                return False
            if full:
                self._queue.popleft()
            self._submitted += 1
            self._queue.append((self._submitted, self._clock(), job))
            self._changed.notify_all()
            return True

    def stalled_for(self, now: float) -> float:
        """Seconds since the current job started, or since the oldest waiting one was submitted; 0 when idle."""
        with self._changed:
            since = self._working_since
            if since is None and self._queue:
                since = self._queue[0][1]
            return 0.0 if since is None else max(0.0, now - since)

    async def flush(
        self,
        timeout: float,  # noqa: ASYNC109 - returns False at the deadline, which is no error here
        enough: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Wait until all submitted jobs are done, or `enough` returns true; False if `timeout` seconds pass first."""
        target, deadline = self._submitted, time.monotonic() + timeout
        while self._settled < target and not enough():
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(_POLL)
        return True

    def close(self, timeout: float) -> bool:
        """Accept no more jobs, finish the waiting ones, end the thread. False if it still runs after `timeout` seconds.

        Blocks the caller: call it after `flush`, or without a running loop.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (task := self._next()) is not None:
            number, job = task
            try:
                job()
            except Exception as error:  # noqa: BLE001 - whatever one job raises, the thread lives for the next
                with contextlib.suppress(Exception):
                    self._on_error(error)
            with self._changed:
                self._settled, self._working_since = number, None

    def _next(self) -> tuple[int, Job] | None:
        with self._changed:
            while not self._queue:
                if self._closing:
                    return None
                self._changed.wait()
            number, _, job = self._queue.popleft()
            self._working_since = self._clock()
            return number, job
