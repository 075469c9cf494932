"""The ledger's interface for the event loop: no call waits for the disk.

Entries stay in a bounded queue until the writer thread has committed them. While it cannot, the thread retries with
growing pauses, and `error` returns the reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from gpuwarden.base.background import BackgroundWriter
from gpuwarden.health.model import Event
from gpuwarden.ledger.rows import Memory
from gpuwarden.ledger.store import Entry
from gpuwarden.ledger.unknown_events import unknown_events, with_unknown_events
from gpuwarden.ledger.write_queue import WriteQueue
from gpuwarden.ledger.writer import LedgerWriter
from gpuwarden_collectors.base import Clock, host_clock
from gpuwarden_collectors.event_facts import LogPosition
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.host import MachineIdentity

_STALLED = 5.0  # seconds after which a write that hangs is reported
_CHECKPOINT_AFTER = 1_000  # events
_CHECKPOINT_EVERY = 86_400.0  # seconds
_DAMAGE_SHOWN = 3_600.0  # seconds for which damage found is reported
COMMITS_WITHIN = 2.0
"""Seconds that an exclusion or a signal waits until its record is on disk. After that it proceeds: a dead GPU matters
more."""


class Ledger:
    """Owns the store and its writer thread."""

    def __init__(
        self, path: Path, *, machine: MachineIdentity, boot_id: str, clock: Clock = host_clock, capacity: int = 10_000
    ) -> None:
        self._path = path
        self._clock = clock
        self._boot_id = boot_id
        self._carried: tuple[Event, ...] = ()  # events that only a newer version can fold
        self._late = False  # the events of earlier runs are still unread
        self._uncovered = 0  # events since the last checkpoint
        self._covered_at = clock().boottime
        self._waiting = WriteQueue(capacity)
        self._ledger_writer = LedgerWriter(path, self._waiting, machine, boot_id, clock)
        self._writer = BackgroundWriter(
            "ledger", 1, newest_wins=True, on_error=self._ledger_writer.failed, clock=lambda: clock().boottime
        )

    @property
    def dropped(self) -> int:
        """Number of events that are not written because too many were waiting."""
        return self._waiting.dropped

    @property
    def unwritten(self) -> int:
        """Number of events that wait to be written."""
        return self._waiting.events

    async def open(self, deadline: float) -> Memory | None:
        """Open the ledger and return this machine's events; None if they are not read within `deadline` seconds (see
        `error`).

        `tend` then continues to try, and `recall` returns the events once they are read.
        """
        self._writer.submit(self._ledger_writer.work)
        await self._writer.flush(deadline)
        memory = self.recall()
        self._late = memory is None
        return memory

    def recall(self) -> Memory | None:
        """Return the ledger's events once each time it was opened late or recreated; otherwise None.

        The caller folds them, unless the ledger was just `begun`, and then appends a checkpoint with the state of this
        run.
        """
        if not self._ledger_writer.memories:
            return None
        memory = self._ledger_writer.memories.pop()
        self._late = False
        self._uncovered = len(memory.events)
        self._carried = unknown_events(memory.events)
        return memory

    def append(
        self,
        events: Iterable[Event] = (),
        *,
        position: LogPosition | None = None,
        checkpoint: Iterable[Event] | None = None,
    ) -> None:
        """Queue an entry, which is committed as a unit (see `Entry`)."""
        covered = None if checkpoint is None else with_unknown_events(self._carried, checkpoint, self._boot_id)
        entry = Entry(events=tuple(events), position=position, checkpoint=covered)
        fits = self._waiting.add(entry)
        if covered is not None:
            self._uncovered, self._covered_at = 0, self._clock().boottime
        else:
            self._uncovered += len(entry.events) if fits else _CHECKPOINT_AFTER  # after a loss a checkpoint is due
        self._writer.submit(self._ledger_writer.work)

    def checkpoint_due(self, now: Stamp) -> bool:
        """Return True if the next `append` should have a checkpoint. It limits what a start folds, and lets old events
        be pruned.
        """
        late = now.boottime - self._covered_at >= _CHECKPOINT_EVERY
        return self._uncovered >= _CHECKPOINT_AFTER or (late and self._uncovered > 0)

    def tend(self) -> None:
        """Retry failed writes, and prune if it is due. Called in each step."""
        self._writer.submit(self._ledger_writer.work)

    def error(self, now: Stamp) -> str:
        """Why nothing can be written, or that the ledger was recently damaged; "" if neither."""
        stalled = self._writer.stalled_for(now.boottime)
        if stalled > _STALLED:
            return f"ledger {self._path}: the disk has not responded for {stalled:.0f} s; is its filesystem frozen?"
        if self._ledger_writer.error:
            return self._ledger_writer.error
        if self._late and not self._ledger_writer.memories:
            return f"ledger {self._path} was not read in time: findings from before this start are not judged yet"
        found_at, damage = self._ledger_writer.damage or (None, "")
        if found_at is not None and now.boottime - found_at.boottime < _DAMAGE_SHOWN:
            return f"ledger {self._path} {damage}"
        return ""

    async def flush(self, timeout: float) -> bool:  # noqa: ASYNC109 - returns False at the deadline, which is no error here
        """Try at once to commit everything appended so far. Returns after at most `timeout` seconds whether that is
        done.
        """
        committed = self._begin_commit()
        await self._writer.flush(timeout)
        return committed()

    async def commit(self, timeout: float = COMMITS_WITHIN) -> bool:  # noqa: ASYNC109 - as in `flush`
        """Do what `flush` does, without waiting for the thread's other work, such as moving the log into the database."""
        committed = self._begin_commit()
        await self._writer.flush(timeout, committed)
        return committed()

    def _begin_commit(self) -> Callable[[], bool]:
        """Begin a commit, and return a function that returns True once all events appended so far are committed."""
        target = self._waiting.added
        self._ledger_writer.hurry()
        self._writer.submit(self._ledger_writer.work)
        return lambda: self._waiting.settled >= target

    async def close(self, timeout: float) -> bool:  # noqa: ASYNC109 - as in `flush`
        """Flush and close. Returns False if not all was committed in time. A thread that hangs is abandoned."""
        deadline = time.monotonic() + timeout
        committed = await self.flush(timeout)
        self._writer.submit(self._ledger_writer.close)
        await self._writer.flush(max(0.0, deadline - time.monotonic()))
        self._writer.close(timeout=0.1)
        return committed
