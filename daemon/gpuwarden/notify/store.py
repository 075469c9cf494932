"""The queue as the loop sees it: a thread owns it, and nobody waits for a disk but who asked for what is on it.

While the disk takes nothing, what comes is kept in memory, within the same bounds and behind what is on disk; it goes to disk
with the next message that finds it well.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

from gpuwarden.background import BackgroundWriter
from gpuwarden.log import get_logger
from gpuwarden.notify.queue import BYTES_MOST, ROWS_MOST, Message, Queue, Waiting, is_corrupt, move_aside

Answer = TypeVar("Answer")

log = get_logger("gpuwarden")

_MEANWHILE = "what is to be told is kept in memory meanwhile"
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
        self._spilled = Queue(None, **self._most)
        self._told: dict[int, str] = {}  # by number, what is still on disk and was told
        self._writer = BackgroundWriter("notify", JOBS_MOST, on_error=self._failed)

    @property
    def dropped(self) -> int:
        """Steps whose messages are lost, since too many waited for the disk."""
        return self._writer.dropped

    def put(self, messages: Sequence[tuple[str, Message]]) -> None:
        self._writer.submit(lambda: self._put(messages))

    def done(self, target: str, number: int) -> None:
        self._writer.submit(lambda: self._done(target, number))

    async def head(self, target: str, most: int) -> list[Waiting]:
        """The oldest first. The numbers of those in memory are negative."""
        return await self._asked(lambda: self._head(target, most))

    def close(self) -> None:
        """Blocks for `CLOSES_WITHIN` at most."""
        self._writer.submit(self._end)
        self._writer.close(CLOSES_WITHIN)

    async def _asked(self, ask: Callable[[], Answer]) -> Answer:
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
                answer = ask()
            except Exception as raised:  # noqa: BLE001 - it belongs to whoever asked
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, answer, error)

        while not self._writer.submit(work):  # noqa: ASYNC110 - a thread empties it
            await asyncio.sleep(0.1)
        return await future

    # --- in the thread

    def _put(self, messages: Sequence[tuple[str, Message]]) -> None:
        waiting = [*self._spilled.everything(), *messages]
        try:
            self.gone.update(self._on_disk(lambda queue: queue.put(waiting)))
        except (sqlite3.Error, OSError) as error:
            self.trouble = f"cannot write {self._path}: {error}; {_MEANWHILE}"
            self.gone.update(self._spilled.put(messages))
        else:
            self.trouble = ""
            self._spilled.forget(())
            self._forget_told()
        self._count()

    def _done(self, target: str, number: int) -> None:
        if number < 0:
            self._spilled.done(target, -number)
        else:
            self._told[number] = target
            self._forget_told()
        self._count()

    def _forget_told(self) -> None:
        """What the disk cannot forget now is not told again meanwhile."""
        try:
            for number, target in list(self._told.items()):
                self._on_disk(partial(Queue.done, target=target, number=number))
                del self._told[number]
        except (sqlite3.Error, OSError) as error:
            self.trouble = f"cannot write {self._path}: {error}; {_MEANWHILE}"

    def _head(self, target: str, most: int) -> list[Waiting]:
        found: list[Waiting] = []
        try:
            found = self._on_disk(lambda queue: queue.head(target, most + len(self._told)))
        except (sqlite3.Error, OSError) as error:
            self.trouble = f"cannot read {self._path}: {error}; {_MEANWHILE}"
        self._count()
        left = [one for one in found if one.id not in self._told][:most]
        more = self._spilled.head(target, most - len(left))
        return [*left, *(Waiting(-one.id, one.message) for one in more)]

    def _on_disk(self, work: Callable[[Queue], Answer]) -> Answer:
        try:
            return work(self._opened())
        except (sqlite3.Error, OSError) as error:
            self._close()
            if not is_corrupt(error):
                raise
            aside = move_aside(self._path)
            text = "the queue of notifications was corrupt: moved aside, begun anew"
            log.error(text, moved_to=str(aside))  # noqa: TRY400 - where it broke says nothing more
            self._told.clear()
            return work(self._opened())

    def _opened(self) -> Queue:
        if self._queue is None:
            self._queue = Queue(self._path, **self._most)
            self._queue.forget(self._targets)
        return self._queue

    def _count(self) -> None:
        self.rows = (Counter() if self._queue is None else self._queue.rows) + self._spilled.rows

    def _end(self) -> None:
        self._close()
        self._spilled.close()

    def _close(self) -> None:
        queue, self._queue = self._queue, None
        if queue is not None:
            with contextlib.suppress(sqlite3.Error):
                queue.close()

    def _failed(self, error: Exception) -> None:
        self.trouble = f"notifications failed unexpectedly: {error!r}"
