"""Undelivered messages, on disk, so that neither a restart nor a week without network loses them. For one thread only.

Bounded in number and size. When it is full superseded messages (with a later one of the same subject) are dropped first, so that the latest
state of every subject stays; only if that is not enough the oldest of all.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROWS_MOST = 100_000
BYTES_MOST = 40 << 20
"""Bytes of all messages; with keys, index and free pages the file stays below 64 MiB, which SQLite enforces as well."""
FILE_MOST = 64 << 20
_PAGE = 4_096
_MAKE_ROOM = 100  # the part of what fits that goes at once, so that a full queue is not searched for every message
_ROW = 120  # bytes that a row costs besides its texts

_TABLE = """
    CREATE TABLE IF NOT EXISTS message (
        id INTEGER PRIMARY KEY AUTOINCREMENT, target TEXT NOT NULL, subject TEXT NOT NULL, key TEXT NOT NULL, body TEXT NOT NULL
    )
"""
_SUPERSEDED = """
    SELECT id, target, size FROM (
        SELECT id, target, length(CAST(body AS BLOB)) + length(subject) AS size,
               max(id) OVER (PARTITION BY target, subject) AS latest
        FROM message
    ) WHERE id < latest ORDER BY id LIMIT ?
"""
_OLDEST = "SELECT id, target, length(CAST(body AS BLOB)) + length(subject) FROM message ORDER BY id LIMIT ?"


@dataclass(frozen=True, slots=True)
class Message:
    """A notification for one receiver."""

    subject: str
    """What the message is the latest state of."""
    key: str
    """Unique; the same for every attempt to deliver it."""
    body: str
    """JSON."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A message in the queue."""

    id: int
    message: Message


def move_aside(path: Path) -> Path:
    """The new path; an earlier file of that name is replaced. Raises OSError."""
    aside = path.with_name(f"{path.name}.corrupt")
    for side in ("-wal", "-shm", ""):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + side).replace(aside.with_name(aside.name + side))
    return aside


class Queue:
    """Raises sqlite3.Error and OSError. `path` None: in memory."""

    def __init__(self, path: Path | None, *, rows_most: int = ROWS_MOST, bytes_most: int = BYTES_MOST) -> None:
        self._rows_most, self._bytes_most = rows_most, bytes_most
        if path is not None:
            path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        self._open(path)

    def _open(self, path: Path | None) -> None:
        self._db = sqlite3.connect(":memory:" if path is None else path, isolation_level=None, check_same_thread=False)
        try:
            self._db.execute(f"PRAGMA page_size = {_PAGE}")
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.execute("PRAGMA cache_size = -512")
            self._db.execute("PRAGMA journal_size_limit = 4194304")
            self._db.execute(f"PRAGMA max_page_count = {FILE_MOST // _PAGE}")
            self._db.execute(_TABLE)
            self.rows: Counter[str] = Counter()
            self._bytes = 0
            sizes = "SELECT target, count(*), sum(length(CAST(body AS BLOB)) + length(subject)) FROM message GROUP BY target"
            for target, rows, size in self._db.execute(sizes):
                self.rows[target] = rows
                self._bytes += size
        except BaseException:
            self._db.close()
            raise

    def put(self, messages: Iterable[tuple[str, Message]]) -> Counter[str]:
        """Each for a target. Returns how many of each target were dropped for room."""
        insert = "INSERT INTO message (target, subject, key, body) VALUES (?, ?, ?, ?)"
        with self._transaction():
            for target, message in messages:
                self._db.execute(insert, (target, message.subject, message.key, message.body))
                self.rows[target] += 1
                self._bytes += len(message.body.encode()) + len(message.subject)
            return self._make_room()

    def head(self, target: str, most: int) -> list[Waiting]:
        """The oldest first."""
        select = "SELECT id, subject, key, body FROM message WHERE target = ? ORDER BY id LIMIT ?"
        return [Waiting(number, Message(*fields)) for number, *fields in self._db.execute(select, (target, most))]

    def done(self, target: str, number: int, key: str) -> None:
        """It was delivered, or never will be."""
        size = "SELECT length(CAST(body AS BLOB)) + length(subject) FROM message WHERE id = ? AND key = ?"
        found = self._db.execute(size, (number, key)).fetchone()
        if found is not None:  # else it was dropped meanwhile
            self._db.execute("DELETE FROM message WHERE id = ?", (number,))
            self.rows[target] -= 1
            self._bytes -= found[0]

    def everything(self) -> list[tuple[str, Message]]:
        """In order, with their targets."""
        rows = self._db.execute("SELECT target, subject, key, body FROM message ORDER BY id")
        return [(target, Message(*fields)) for target, *fields in rows]

    def forget(self, targets: Iterable[str]) -> None:
        """Delete the messages of all other targets."""
        kept = set(targets)
        for gone in self.rows.keys() - kept:
            self._db.execute("DELETE FROM message WHERE target = ?", (gone,))
        size = self._db.execute("SELECT sum(length(CAST(body AS BLOB)) + length(subject)) FROM message").fetchone()[0]
        self._bytes = size or 0
        self.rows = Counter({target: rows for target, rows in self.rows.items() if target in kept})

    def close(self) -> None:
        self._db.close()

    def _make_room(self) -> Counter[str]:
        gone: Counter[str] = Counter()
        for select in (_SUPERSEDED, _OLDEST):
            while self._is_full():
                rows = self._db.execute(select, (max(1, self._rows_most // _MAKE_ROOM),)).fetchall()
                if not rows:
                    break
                for number, target, size in rows:
                    if not self._is_full(with_room=True):
                        break
                    self._db.execute("DELETE FROM message WHERE id = ?", (number,))
                    gone[target] += 1
                    self.rows[target] -= 1
                    self._bytes -= size
        return gone

    def _is_full(self, *, with_room: bool = False) -> bool:
        part = 1.0 - with_room / _MAKE_ROOM
        rows = self.rows.total()
        return rows > self._rows_most * part or self._bytes + rows * _ROW > self._bytes_most * part

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        before = self.rows.copy(), self._bytes
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            self.rows, self._bytes = before
            with contextlib.suppress(sqlite3.Error):  # it may be rolled back already
                self._db.execute("ROLLBACK")
            raise
