"""The queue as the event loop uses it: a thread owns it, and only `head` waits for the disk.

While the disk cannot be written, new messages are kept in memory, within the same bounds and behind those on disk; they go to disk
with the next write or read that succeeds. One daemon owns a queue: two would deliver its messages twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from gpuwarden.base.background import BackgroundWriter, boottime
from gpuwarden.base.log import get_logger
from gpuwarden.base.threads import promised
from gpuwarden.ledger.errors import is_damage
from gpuwarden.notify.queue import BYTES_MOST, ROWS_MOST, Message, Queue, Waiting, move_aside

Value = TypeVar("Value")

log = get_logger()

_MEANWHILE = "messages are kept in memory meanwhile"
JOBS_MOST = 1_000
"""Steps of the daemon whose messages may wait for the disk."""
CLOSES_WITHIN = 2.0
STALLED = 10.0
"""Seconds after which a write that has not ended is reported as stalled; SQLite waits 5 s for another process."""


class QueueStore:
    """Cannot be used after `close`."""

    def __init__(
        self, path: Path, targets: Sequence[str], *, rows_most: int = ROWS_MOST, bytes_most: int = BYTES_MOST
    ) -> None:
        self._gone: Counter[str] = Counter()
        self._lost: Counter[str] = Counter()
        self._error = ""
        self.rows: Counter[str] = Counter()
        self._path = path
        self._targets = tuple(targets)
        self._most = {"rows_most": rows_most, "bytes_most": bytes_most}
        self._queue: Queue | None = None
        self._spilled = Queue(None, **self._most)
        self._delivered: dict[int, tuple[str, str]] = {}  # target and key, by number: delivered, and still on disk
        self._claim: int | None = None  # descriptor of the locked file
        self._writer = BackgroundWriter("notify", JOBS_MOST, on_error=self._failed)

    @property
    def gone(self) -> Counter[str]:
        """Messages dropped for room, or because too many waited for the disk, by target."""
        return self._gone + self._lost

    @property
    def error(self) -> str:
        """Why nothing is on disk; empty if it is."""
        if self._writer.stalled_for(boottime()) > STALLED:
            return f"cannot write {self._path}: its file system does not respond; is it frozen?"
        return self._error

    def put(self, messages: Sequence[tuple[str, Message]]) -> None:
        if not self._writer.submit(lambda: self._put(messages)):
            self._lost.update(target for target, _ in messages)

    def done(self, target: str, one: Waiting) -> None:
        self._writer.submit(lambda: self._done(target, one))

    async def head(self, target: str, most: int) -> list[Waiting]:
        """The oldest first; messages in memory go to disk if it can be written again. The numbers of those in memory are negative."""
        found, job = promised(lambda: self._head(target, most))
        while not self._writer.submit(job):  # noqa: ASYNC110 - a thread empties it
            await asyncio.sleep(0.1)
        return await found

    def close(self) -> None:
        """Blocks for `CLOSES_WITHIN` at most."""
        self._writer.submit(self._end)
        self._writer.close(CLOSES_WITHIN)

    # --- in the thread

    def _put(self, messages: Sequence[tuple[str, Message]]) -> None:
        try:
            self._gone.update(self._on_disk(lambda queue: queue.put([*self._spilled.everything(), *messages])))
        except (sqlite3.Error, OSError) as error:
            self._error = f"cannot write {self._path}: {error}; {_MEANWHILE}"
            self._gone.update(self._spilled.put(messages))
        else:
            self._error = ""
            self._spilled.forget(())
            self._delete_delivered()
        self._count()

    def _done(self, target: str, one: Waiting) -> None:
        if one.id < 0:
            self._spilled.done(target, -one.id, one.message.key)
        else:
            self._delivered[one.id] = (target, one.message.key)
            self._delete_delivered()
        self._count()

    def _delete_delivered(self) -> None:
        """Messages that cannot be deleted from disk now are not delivered again meanwhile."""
        try:
            for number, (target, key) in list(self._delivered.items()):
                self._on_disk(partial(Queue.done, target=target, number=number, key=key))
                self._delivered.pop(number, None)  # where the file was corrupt, nothing of it is left
        except (sqlite3.Error, OSError) as error:
            self._error = f"cannot write {self._path}: {error}; {_MEANWHILE}"

    def _head(self, target: str, most: int) -> list[Waiting]:
        found: list[Waiting] = []
        if self._error:
            self._put(())
        try:
            found = self._on_disk(lambda queue: queue.head(target, most + len(self._delivered)))
        except (sqlite3.Error, OSError) as error:
            self._error = f"cannot read {self._path}: {error}; {_MEANWHILE}"
        self._count()
        left = [one for one in found if one.id not in self._delivered][:most]
        more = self._spilled.head(target, most - len(left))
        return [*left, *(Waiting(-one.id, one.message) for one in more)]

    def _on_disk(self, work: Callable[[Queue], Value]) -> Value:
        try:
            return work(self._opened())
        except (sqlite3.Error, OSError) as error:
            self._close()
            if not is_damage(error):
                raise
            aside = move_aside(self._path)
            text = "notification queue corrupt; moved aside and begun again"
            log.error(text, moved_to=str(aside))  # noqa: TRY400 - a traceback adds nothing
            self._delivered.clear()
            return work(self._opened())

    def _opened(self) -> Queue:
        self._claimed()
        if self._queue is None:
            self._queue = Queue(self._path, **self._most)
            self._queue.forget(self._targets)
        return self._queue

    def _claimed(self) -> None:
        """The lock ends with its holder."""
        if self._claim is not None:
            return
        self._path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        claim = os.open(self._path.with_name(f"{self._path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(claim)
            if not isinstance(error, BlockingIOError):
                raise
            why = "it belongs to another gpuwarden that runs: stop one, or give one another state.dir"
            raise OSError(why) from error
        self._claim = claim

    def _count(self) -> None:
        self.rows = (Counter() if self._queue is None else self._queue.rows) + self._spilled.rows

    def _end(self) -> None:
        self._close()
        self._spilled.close()
        claim, self._claim = self._claim, None
        if claim is not None:
            os.close(claim)

    def _close(self) -> None:
        queue, self._queue = self._queue, None
        if queue is not None:
            with contextlib.suppress(sqlite3.Error):
                queue.close()

    def _failed(self, error: Exception) -> None:
        self._error = f"notifications failed unexpectedly: {error!r}"
