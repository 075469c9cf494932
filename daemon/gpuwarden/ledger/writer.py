"""The writer thread's part of the ledger: it opens, writes and prunes, and retries after any error."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections import deque
from pathlib import Path

from gpuwarden.health.model import EventKind, Latch
from gpuwarden.ledger.errors import LedgerCorrupt, LedgerError, LedgerUnavailable, translated
from gpuwarden.ledger.machine import same_machine
from gpuwarden.ledger.reader import read_only
from gpuwarden.ledger.recovery import Opened, Opener, open_ledger, replace_corrupt
from gpuwarden.ledger.rows import Memory
from gpuwarden.ledger.store import Entry, Store
from gpuwarden.ledger.write_queue import WriteQueue
from gpuwarden_collectors.backoff import Backoff
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.host import MachineIdentity

_RETRY_FIRST, _RETRY_MAX = 1.0, 60.0  # seconds between attempts, doubling
_BATCH = 500  # entries in one transaction
_PRUNE_EVERY = 3_600.0  # seconds
_PRUNE_FROM = 3_600.0  # ... of uptime: before that the wall clock may be years ahead, until a time server has set it
_SEAL_EVERY = 30.0  # seconds for which events other than latches may be only in the WAL
_SEAL_SOON = 1.0  # ... exclusions: a signal to a job often follows, whose record must not wait for two syncs
_SEAL_HELD_UP = 15.0  # seconds for which a reader or the disk may delay the seal before that is an error
_LOST = "its log was damaged, or a power cut came before it was on disk; latched failures may be forgotten, see `gpuwarden events`"
_PRUNE_AFTER = 1_000  # ... or this many events: half of what one call of `Store.prune` deletes


class LedgerWriter:
    """Writes the ledger. `work` and `close` run in the writer thread, and `failed` gets their errors. Any thread may
    read the attributes.

    `memories` gets an item when the ledger is first opened, and each time it is recreated. `error`: why nothing can be
    written. `damage`: when the ledger was found damaged, and what was done.
    """

    def __init__(self, path: Path, waiting: WriteQueue, machine: MachineIdentity, boot_id: str, clock: Clock) -> None:
        self.memories: deque[Memory] = deque(maxlen=1)
        self.error = ""
        self.damage: tuple[Stamp, str] | None = None
        self._path = path
        self._waiting = waiting
        self._machine = machine
        self._boot_id = boot_id
        self._clock = clock
        self._store: Store | None = None
        self._claim: int | None = None  # descriptor of the locked file
        self._remembered = False
        self._retry_at = 0.0
        self._backoff = Backoff(_RETRY_FIRST, _RETRY_MAX)
        self._prune_at = 0.0
        self._unpruned = 0
        self._unsealed = False
        self._seal_at = 0.0
        self._unsealed_since: float | None = None

    def hurry(self) -> None:
        """Make the next `work` try at once, without the pause after a failure."""
        self._retry_at = 0.0

    def work(self) -> None:
        now = self._clock()
        if now.boottime < self._retry_at:
            return
        opener = Opener(machine=self._machine, boot_id=self._boot_id, at=now)
        self._claimed()
        try:
            store = self._store or self._opened(now, open_ledger(self._path, opener))
            self._write(store)
            self._seal(store, now)
            self._prune(store, now)
        except LedgerCorrupt as error:
            broken, self._store = self._store, None
            self._waiting.put_back()
            self._write(self._opened(now, replace_corrupt(self._path, opener, error, broken)))
        self.error = ""
        self._backoff.succeeded()

    def failed(self, error: Exception) -> None:
        self.error = str(error) if isinstance(error, LedgerError) else f"the ledger failed unexpectedly: {error!r}"
        self._waiting.put_back()
        self.close()
        self._retry_at = self._clock().boottime + self._backoff.failed()
        if not self._remembered:
            self._recall()

    def close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            with contextlib.suppress(LedgerError):
                if self._unsealed:
                    store.seal()
            with contextlib.suppress(LedgerError):
                store.close()
        claim, self._claim = self._claim, None
        if claim is not None:
            os.close(claim)

    def _claimed(self) -> None:
        """Lock the ledger, since two daemons would judge by each other's events. The lock ends with its process."""
        if self._claim is not None:
            return
        with translated(self._path):
            self._path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            lock = self._path.with_name(f"{self._path.name}.lock")
            claim = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
            try:
                fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                os.close(claim)
                raise LedgerUnavailable(
                    f"ledger {self._path} belongs to another gpuwarden that runs: stop one, or give one another state.dir"
                ) from error
        self._claim = claim

    def _opened(self, now: Stamp, opened: Opened) -> Store:
        store = self._store = opened.store
        if opened.moved:
            self.damage = now, f"was corrupt: it was moved aside to {opened.moved} and a new one was begun"
        if opened.lost:
            self.damage = now, f"lost its last {opened.lost} events: {_LOST}"
        self._unsealed, self._seal_at = True, now.boottime
        if store.begun or not self._remembered:
            self.memories.append(store.memory())
            self._remembered = True
        return store

    def _recall(self) -> None:
        """Read the memory of a ledger that cannot be written, but may still be readable."""
        with contextlib.suppress(LedgerError), read_only(self._path) as reader:
            same = same_machine(reader.machine(), self._machine)
            self.memories.append(reader.memory() if same else Memory())
            self._remembered = True

    def _write(self, store: Store) -> None:
        while batch := self._waiting.take(_BATCH):
            store.append(batch)
            self._waiting.done()
            self._unpruned += sum(len(entry.events) for entry in batch)
            self._unsealed = True
            if any(map(_is_urgent, batch)):
                self._seal_at = 0.0
            elif any(event.kind == EventKind.EXCLUDED for entry in batch for event in entry.events):
                self._seal_at = min(self._seal_at, self._clock().boottime + _SEAL_SOON)

    def _seal(self, store: Store, now: Stamp) -> None:
        if not self._unsealed or now.boottime < self._seal_at:
            return
        if store.seal():
            self._unsealed, self._unsealed_since, self._seal_at = False, None, now.boottime + _SEAL_EVERY
            return
        self._unsealed_since = now.boottime if self._unsealed_since is None else self._unsealed_since
        if now.boottime - self._unsealed_since >= _SEAL_HELD_UP:
            raise LedgerUnavailable(
                f"ledger {self._path}: its log cannot be moved into the database: is the disk full, or does another process "
                "read the ledger for long? What the log holds is lost if the log is"
            )

    def _prune(self, store: Store, now: Stamp) -> None:
        if now.boottime < _PRUNE_FROM:
            return
        if now.boottime >= self._prune_at or self._unpruned >= _PRUNE_AFTER:
            store.prune(now.wall)
            self._prune_at, self._unpruned = now.boottime + _PRUNE_EVERY, 0


def _is_urgent(entry: Entry) -> bool:
    """True if the entry has a checkpoint or a latch, which a restart must not lose."""
    return entry.checkpoint is not None or any(
        event.kind == EventKind.LATCHED
        or (event.kind == EventKind.RAISED and event.data.get("latch", Latch.NONE.value) != Latch.NONE.value)
        for event in entry.events
    )
