"""The queue as the loop sees it: a thread owns it, and nobody waits for a disk but who asked for what is on it.

While the disk takes nothing, what is to be told is kept in memory, within the same bounds, until the next start.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar, cast

from gpuwarden.background import BackgroundWriter
from gpuwarden.notify.queue import BYTES_MOST, ROWS_MOST, Message, Queue, Waiting

Answer = TypeVar("Answer")

JOBS_MOST = 1_000
"""Steps of the daemon whose messages may wait for the disk."""
CLOSES_WITHIN = 2.0


class QueueStore:
    """`gone`: messages that had to make room, by target. `trouble`: why nothing is on disk; empty if it is."""

    def __init__(
        self, path: Path, targets: Sequence[str], *, rows_most: int = ROWS_MOST, bytes_most: int = BYTES_MOST
    ) -> None:
        self.gone: Counter[str] = Counter()
        self.trouble = ""
        self.rows: Counter[str] = Counter()
        self._path = path
        self._targets = tuple(targets)
        self._most = {"rows_most": rows_most, "bytes_most": bytes_most}
        self._queue: Queue | None = None
        self._writer = BackgroundWriter("notify", JOBS_MOST, on_error=self._failed)

    @property
    def dropped(self) -> int:
        """Steps whose messages are lost, since too many waited for the disk."""
        return self._writer.dropped

    def put(self, messages: Sequence[tuple[str, Message]]) -> None:
        self._writer.submit(lambda: self._do(lambda queue: self.gone.update(queue.put(messages))))

    def done(self, target: str, number: int) -> None:
        self._writer.submit(lambda: self._do(lambda queue: queue.done(target, number)))

    async def head(self, target: str, most: int) -> list[Waiting]:
        return await self._asked(lambda queue: queue.head(target, most))

    def close(self) -> None:
        """Blocks for `CLOSES_WITHIN` at most."""
        self._writer.submit(self._close)
        self._writer.close(CLOSES_WITHIN)

    async def _asked(self, ask: Callable[[Queue], Answer]) -> Answer:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()

        def settle(answer: Answer | None, error: Exception | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(cast("Answer", answer))

        def work() -> None:
            answer, error = None, None
            try:
                answer = self._do(ask)
            except Exception as raised:  # noqa: BLE001 - it belongs to whoever asked
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, answer, error)

        while not self._writer.submit(work):  # noqa: ASYNC110 - a thread empties it
            await asyncio.sleep(0.1)
        return await future

    # --- in the thread

    def _do(self, work: Callable[[Queue], Answer]) -> Answer:
        try:
            return self._worked(work)
        except (sqlite3.Error, OSError) as error:
            if self.trouble:  # that of memory is a fault of ours
                raise
            self.trouble = f"cannot use {self._path}: {error}; until the next start it is kept in memory"
            self._close()
            self._queue = Queue(None, **self._most)
            return self._worked(work)

    def _worked(self, work: Callable[[Queue], Answer]) -> Answer:
        if self._queue is None:
            self._queue = Queue(self._path, **self._most)
            self._queue.forget(self._targets)
        try:
            return work(self._queue)
        finally:
            self.rows = self._queue.rows.copy()

    def _close(self) -> None:
        queue, self._queue = self._queue, None
        if queue is not None:
            with contextlib.suppress(sqlite3.Error):
                queue.close()

    def _failed(self, error: Exception) -> None:
        self.trouble = f"notifications failed unexpectedly: {error!r}"
