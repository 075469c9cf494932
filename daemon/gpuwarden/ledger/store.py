"""Writing the ledger. Every call may block for as long as the disk does, so it belongs in a writer thread.

SQLite in WAL mode with `synchronous=NORMAL`: committed transactions survive the death of the process at any point; a
power cut may lose the last ones, each as a whole. An event and its kernel log position are one transaction, so after a
restart no line is lost or read twice.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, Self

from gpuwarden.health.model import Event
from gpuwarden.ledger import schema, seal
from gpuwarden.ledger.errors import LedgerUnavailable, check_verdict, reading, translated
from gpuwarden.ledger.machine import as_text
from gpuwarden.ledger.reader import BUSY_TIMEOUT, Reader
from gpuwarden.ledger.rows import row_of
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.event_facts import LogPosition
from gpuwarden_collectors.host import MachineIdentity

KEEP_SECONDS = 35 * 86_400.0
KEEP_ROWS = 200_000
_CACHE = 512  # KiB; what is written is small, and the check at the start would fill any cache
_WAL_LIMIT = 4 << 20  # bytes to which the log is cut back after a long reader let it grow

_INSERT_EVENT = """
    INSERT INTO events (era, kind, boot_id, boottime, wall, code, subject, detail, data)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_INSERT_CHECKPOINT = """
    INSERT INTO checkpoint (era, number, kind, boot_id, boottime, wall, code, subject, detail, data)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_PRUNE = """
    DELETE FROM events WHERE id IN (
        SELECT id FROM events WHERE (wall < :before OR id <= :surplus) AND (era != :era OR id <= :through)
        ORDER BY id LIMIT :most
    )
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What is committed as a unit. `position`: how far the kernel log was read, these events included. `checkpoint`:
    events whose fold gives the state after `events`.
    """

    events: tuple[Event, ...] = ()
    position: LogPosition | None = None
    checkpoint: tuple[Event, ...] | None = None


class Store(Reader):
    """The only connection that writes the ledger."""

    @classmethod
    def open(cls, path: Path, *, now: float, synchronous: Literal["NORMAL", "FULL"] = "NORMAL") -> Self:
        """Open or create the ledger; `now` is wall time.

        Raises LedgerCorrupt or LedgerRefused, without any change, or LedgerUnavailable.
        """
        with reading(path):
            _create_file(path)
            db = sqlite3.connect(path, timeout=BUSY_TIMEOUT, isolation_level=None, check_same_thread=False)
            store = cls(db, path)
            try:
                store._prepare(now, synchronous)
            except BaseException:
                db.close()
                raise
            return store

    def _prepare(self, now: float, synchronous: str) -> None:
        version = schema.check_version(self._db, self.path)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute(f"PRAGMA synchronous = {synchronous}")
        self._db.execute(f"PRAGMA cache_size = -{_CACHE}")
        self._db.execute(f"PRAGMA journal_size_limit = {_WAL_LIMIT}")
        (verdict,) = self._db.execute("PRAGMA quick_check(1)").fetchone()
        check_verdict(verdict, self.path)
        if version is None or version < (schema.MAJOR, schema.MINOR):
            with self._transaction():
                schema.create(self._db, now)
        self.begun = version is None
        self._file = os.stat(self.path)  # noqa: PTH116 - compared with samestat

    def append(self, entries: Iterable[Entry]) -> None:
        """Commit all of them, in order, or none."""
        with translated(self.path), self._transaction():
            # The file may have been moved away: anything written into it would be lost.
            if not os.path.samestat(os.stat(self.path), self._file):  # noqa: PTH116 - compared with samestat
                raise LedgerUnavailable(f"ledger {self.path} was replaced by another file; it is opened again")
            for entry in entries:
                self._insert(entry.events)
                if entry.position is not None:
                    self._set_meta("kernel_log_boot_id", entry.position.boot_id)
                    self._set_meta("kernel_log_sequence", str(entry.position.sequence))
                if entry.checkpoint is not None:
                    self._replace_checkpoint(entry.checkpoint)

    def archive(self, machine: MachineIdentity, event: Event) -> None:
        """Begin a new era with `event`. Events of earlier eras no longer count, including pins, latches and
        acknowledgements.
        """
        with translated(self.path), self._transaction():
            self._db.execute("DELETE FROM meta WHERE key IN ('kernel_log_boot_id', 'kernel_log_sequence')")
            self._set_meta("era", str(self.era() + 1))
            self._set_meta("machine", as_text(machine))
            self._insert((event,))
        self.begun = True

    def set_machine(self, machine: MachineIdentity) -> None:
        with translated(self.path), self._transaction():
            self._set_meta("machine", as_text(machine))

    def seal(self) -> bool:
        """Move the WAL into the database and write the seal (`seal.py`), both synced. False while a
        reader prevents it.
        """
        with translated(self.path):
            _, in_log, moved = self._db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            if moved < in_log:
                return False
            seal.write(self.path, self.sealed())
        return True

    def prune(
        self, now: float, *, keep_seconds: float = KEEP_SECONDS, keep_rows: int = KEEP_ROWS, most: int = 2_000
    ) -> int:
        """Delete at most `most` events that are too old or too many, the oldest first; returns how many.

        Events that no checkpoint covers are kept.
        """
        surplus = "SELECT id FROM events ORDER BY id DESC LIMIT 1 OFFSET ?"
        with translated(self.path), self._transaction():
            (too_many,) = self._db.execute(surplus, (keep_rows,)).fetchone() or (0,)
            bounds = {"before": now - keep_seconds, "surplus": too_many, "era": self.era(), "most": most}
            return self._db.execute(_PRUNE, {**bounds, "through": self._through()}).rowcount

    def _insert(self, events: Iterable[Event]) -> None:
        era = self.era()
        self._db.executemany(_INSERT_EVENT, ((era, *row_of(event)) for event in events))

    def _replace_checkpoint(self, events: Iterable[Event]) -> None:
        era = self.era()
        self._db.execute("DELETE FROM checkpoint WHERE era = ?", (era,))
        rows = ((era, number, *row_of(event)) for number, event in enumerate(events))
        self._db.executemany(_INSERT_CHECKPOINT, rows)
        (newest,) = self._db.execute("SELECT max(id) FROM events").fetchone()
        self._set_meta("checkpoint_through", str(newest or 0))
        self._set_meta("checkpoints", str(int(self._meta("checkpoints") or 0) + 1))

    def _set_meta(self, key: str, value: str) -> None:
        self._db.execute(
            "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", (key, value)
        )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            # It may be rolled back already, and the first error is the one to report.
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            raise


def _create_file(path: Path) -> None:
    """Create the file and its folder with their modes. SQLite gives the files beside it the mode of the file."""
    path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    # An existing file is not opened: closing it would release the locks that SQLite may hold on it in this process.
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640))
