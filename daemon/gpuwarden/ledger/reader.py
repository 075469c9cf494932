"""Reading the ledger: the queries that the daemon's store and the command line share, and read-only access."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self
from urllib.parse import quote

from gpuwarden.ledger import schema
from gpuwarden.ledger.errors import LedgerCorrupt, LedgerUnavailable, reading, translated
from gpuwarden.ledger.machine import of_text
from gpuwarden.ledger.rows import Memory, Recorded, event_of
from gpuwarden.ledger.seal import Seal, digest
from gpuwarden_collectors.event_facts import LogPosition
from gpuwarden_collectors.host import MachineIdentity

BUSY_TIMEOUT = 5.0  # seconds to wait while another process holds the file

_EVENTS = "SELECT id, kind, boot_id, boottime, wall, code, subject, detail, data FROM events WHERE era = :era"
_CHECKPOINT = """
    SELECT kind, boot_id, boottime, wall, code, subject, detail, data FROM checkpoint WHERE era = :era ORDER BY number
"""


_SEALED = f"{_EVENTS} AND id > :through AND id <= :last ORDER BY id"


class Reader:
    """An open ledger, restricted to rows of the current era. Every method may raise LedgerError.

    `begun`: the ledger or its era was created when it was opened.
    """

    begun = False

    def __init__(self, db: sqlite3.Connection, path: Path) -> None:
        self.path = path
        self._db = db

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with translated(self.path):
            self._db.close()

    def events(
        self,
        *,
        since: float | None = None,
        after: int = 0,
        kinds: Collection[str] = (),
        subjects: Collection[str] = (),
        limit: int = 1_000,
        newest: bool = False,
    ) -> list[Recorded]:
        """Return, in order, the first `limit` events, or the last if `newest`, with wall time >= `since`, id > `after`,
        and a kind and a subject among those passed (none: any).

        To continue or to follow, call again with the last id as `after`.
        """
        names = {f"kind{number}": str(kind) for number, kind in enumerate(kinds)}
        of_kind = f"AND kind IN ({','.join(f':{name}' for name in names)})" if kinds else ""
        parts = {f"subject{number}": subject for number, subject in enumerate(subjects)}
        of_subject = f"AND subject IN ({','.join(f':{name}' for name in parts)})" if subjects else ""
        query = f"{_EVENTS} {of_kind} {of_subject} AND wall >= :since AND id > :after ORDER BY id {'DESC' if newest else ''} LIMIT :limit"
        bounds = {"since": float("-inf") if since is None else since, "after": after, "limit": limit}
        with reading(self.path):
            rows = self._db.execute(query, {**names, **parts, **bounds, "era": self.era()})
            recorded = [Recorded(number, event_of(row)) for number, *row in rows]
        return recorded[::-1] if newest else recorded

    def memory(self) -> Memory:
        """The events from which the state is rebuilt."""
        with reading(self.path), self._one_view():
            bounds = {"era": self.era(), "through": self._through()}
            checkpoint = self._db.execute(_CHECKPOINT, bounds)
            since = self._db.execute(f"{_EVENTS} AND id > :through ORDER BY id", bounds)
            return Memory(
                events=(*map(event_of, checkpoint), *(event_of(row) for _, *row in since)),
                position=self.position(),
                begun=self.begun,
            )

    def position(self) -> LogPosition | None:
        with reading(self.path):
            boot_id, sequence = self._meta("kernel_log_boot_id"), self._meta("kernel_log_sequence")
            return LogPosition(boot_id, int(sequence)) if boot_id and sequence else None

    def machine(self) -> MachineIdentity:
        """The machine that last used this ledger; without any identifier if none is recorded."""
        with reading(self.path):
            return of_text(self._meta("machine"))

    def era(self) -> int:
        with reading(self.path):
            return int(self._meta("era") or 1)

    def _through(self) -> int:
        """The id of the last event that the checkpoint covers. In an era without a checkpoint all events have higher
        ids.
        """
        with reading(self.path):
            return int(self._meta("checkpoint_through") or 0)

    def sealed(self, through: int | None = None, last: int | None = None) -> Seal:
        """Compute the seal of the ledger now, or as of the checkpoint through `through` and the events up to `last`."""
        with reading(self.path), self._one_view():
            (newest,) = self._db.execute("SELECT max(id) FROM events").fetchone()
            era, at = self.era(), self._through() if through is None else through
            end = max(newest or 0, at) if last is None else last
            bounds = {"era": era, "through": at, "last": end}
            rows = [*self._db.execute(_CHECKPOINT, bounds), *self._db.execute(_SEALED, bounds)]
            number = int(self._meta("checkpoints") or 0)
            return Seal(
                schema=self._meta("schema"),
                era=era,
                checkpoints=number,
                through=at,
                last=end,
                digest=digest(rows),
                machine=self._meta("machine"),
            )

    def lost(self, seal: Seal | None) -> int:
        """Count events that the ledger had when it was sealed and that are missing at its end. Raises LedgerCorrupt if
        others changed.

        If the era or the checkpoint is newer than the seal, nothing is missing.
        """
        if seal is None:
            return 0
        if seal.era != (era := self.era()):
            if era < seal.era or not self.events(limit=1):  # a new era begins with an event of its own
                raise LedgerCorrupt(
                    f"ledger {self.path} is corrupt: it is in era {era} and was sealed in era {seal.era}"
                )
            return 0
        now = self.sealed()
        if now.last < seal.last or now.checkpoints < seal.checkpoints:
            return max(1, seal.last - now.last)
        if (now.checkpoints, now.through) != (seal.checkpoints, seal.through):
            return 0
        if self.sealed(seal.through, seal.last).digest != seal.digest:
            raise LedgerCorrupt(f"ledger {self.path} is corrupt: it does not hold what it held when it was sealed")
        return 0

    @contextmanager
    def _one_view(self) -> Iterator[None]:
        self._db.execute("BEGIN")
        try:
            yield
        finally:
            # A disk error has ended the transaction already, and is the error to report.
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")

    def _meta(self, key: str) -> str:
        with translated(self.path):
            row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
            return row[0] if row else ""


def read_only(path: Path) -> Reader:
    """Open the ledger for reading, with or without a daemon that writes it, as any user who may read the file.

    No file is written or created, not even the index of the WAL. Raises LedgerUnavailable, LedgerCorrupt or
    LedgerRefused. Open it again for every query: a ledger that no daemon had open is read as immutable.
    """
    path = path.absolute()
    with translated(path):
        os.stat(path)  # noqa: PTH116 - Path.stat is the same; it raises for a missing file, which is not an empty database
    if path.with_name(f"{path.name}-wal").exists():  # a process has it open, or was killed
        with contextlib.suppress(LedgerUnavailable):
            return _connect_read_only(path, "mode=ro&readonly_shm=1")
    return _connect_read_only(path, "mode=ro&immutable=1")


def _connect_read_only(path: Path, options: str) -> Reader:
    with reading(path):
        db = sqlite3.connect(f"file:{quote(str(path))}?{options}", uri=True, timeout=BUSY_TIMEOUT, isolation_level=None)
        try:
            version = schema.check_version(db, path)
        except BaseException:
            db.close()
            raise
    if version is None:
        db.close()
        raise LedgerUnavailable(f"ledger {path} is still empty")
    return Reader(db, path)
