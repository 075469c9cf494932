"""The tables of the ledger and their version.

Versions are `major.minor`. Within a major version changes only add (tables, columns with a default, indexes), so that
an older daemon can use a newer file: statements name their columns. Another major version is refused.
Events may get new kinds, codes and data in a minor version; how an older daemon keeps them: `unknown_events.py`.

- `era` counts the machines that have used this file: only rows of the current era belong to this machine.
- `checkpoint` has the events whose fold gives the state after event `checkpoint_through` (in `meta`). Rows of `events`
  up to there are history: shown, and pruned with time.
- There is no index except the ids: a scan of all events takes 25 ms at most, and an index would slow every write.
- `meta` further holds how many checkpoints were written, the kernel log position, the machine, and when the file was created (wall time).
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from gpuwarden.ledger import seal
from gpuwarden.ledger.errors import LedgerCorrupt, LedgerOfAnotherMajor, LedgerRefused

MAJOR, MINOR = 1, 0

_EVENT = """
    kind TEXT NOT NULL,
    boot_id TEXT NOT NULL,
    boottime REAL NOT NULL,
    wall REAL NOT NULL,
    code TEXT NOT NULL,
    subject TEXT NOT NULL,
    detail TEXT NOT NULL,
    data TEXT NOT NULL
"""

_TABLES = (
    "CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    f"CREATE TABLE IF NOT EXISTS events (id INTEGER PRIMARY KEY AUTOINCREMENT, era INTEGER NOT NULL, {_EVENT})",
    f"""CREATE TABLE IF NOT EXISTS checkpoint (
        era INTEGER NOT NULL, number INTEGER NOT NULL, {_EVENT}, PRIMARY KEY (era, number)
    ) WITHOUT ROWID""",
)


def check_version(db: sqlite3.Connection, path: Path) -> tuple[int, int] | None:
    """The version of the file, None if it is empty. Raises LedgerRefused if this version cannot use it."""
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    if not tables:
        return None
    has_tables = {"events", "checkpoint"} <= tables
    if "meta" not in tables and not has_tables:
        raise LedgerRefused(
            f"{path} is a database but not a ledger of gpuwarden: move it away or set another --state-dir"
        )
    row = db.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone() if "meta" in tables else None
    version: str = row[0] if row else ""
    major, _, minor = version.partition(".")
    if not (major.isdecimal() and minor.isdecimal()):
        if has_tables:
            raise LedgerCorrupt(f"ledger {path} is corrupt: it has a ledger's tables and no version")
        raise LedgerRefused(f"ledger {path} has no version: move it away; a new one will be begun")
    if int(major) != MAJOR:
        sealed = seal.read(path)
        if sealed is not None and sealed.schema.partition(".")[0] == str(MAJOR):  # only this version wrote it
            raise LedgerCorrupt(
                f"ledger {path} is corrupt: it has version {version} and was sealed with {sealed.schema}"
            )
        which = "newer" if int(major) > MAJOR else "older"
        raise LedgerOfAnotherMajor(
            f"ledger {path} has version {version}, this gpuwarden reads {MAJOR}.x: install the {which} gpuwarden again, "
            "which can read it, or move the file away to begin a new one; latches, pins and gpuwarden's exclusions are then forgotten"
        )
    return int(major), int(minor)


def create(db: sqlite3.Connection, created: float) -> None:
    """Create missing tables and entries, within a transaction of the caller."""
    for statement in _TABLES:
        db.execute(statement)
    version = f"{MAJOR}.{MINOR}"
    db.execute(
        "INSERT INTO meta VALUES ('schema', ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", (version,)
    )
    db.executemany(
        "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO NOTHING", [("created", str(created)), ("era", "1")]
    )
