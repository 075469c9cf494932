"""The errors of the ledger, and the cause of each.

LedgerError
├── LedgerUnavailable   disk or host: read-only, full, no permission, locked. It is retried.
├── LedgerCorrupt       the file is damaged: it must be moved aside before a new one is created.
└── LedgerRefused       the file is intact but not a ledger of gpuwarden; an operator must move it.
    └── LedgerOfAnotherMajor    a ledger of a version that this one cannot read; the daemon does not start
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class LedgerError(Exception):
    """The message names the file, the cause and what an operator can do."""


class LedgerUnavailable(LedgerError):  # noqa: N818 - a state of the disk
    pass


class LedgerCorrupt(LedgerError):  # noqa: N818 - a state of the file
    pass


class LedgerRefused(LedgerError):  # noqa: N818 - a decision
    pass


class LedgerOfAnotherMajor(LedgerRefused):
    pass


# SQLite's primary result codes (sqlite.org/rescode.html) for a damaged file, then for altered tables: all statements
# are constant, so one that does not match the tables (ERROR) or violates a constraint means that somebody altered them.
_CORRUPT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_MISFITTING = {
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_TOOBIG,
    sqlite3.SQLITE_FORMAT,
}

# Advice to the operator for the other codes.
_ADVICE = {
    sqlite3.SQLITE_READONLY: "the filesystem, directory or file is read-only: remount it or correct its permissions",
    sqlite3.SQLITE_CANTOPEN: "check that its directory exists, that its filesystem is not read-only and has room",
    sqlite3.SQLITE_PERM: "correct the permissions of the file and its directory",
    sqlite3.SQLITE_FULL: "the disk is full: make room",
    sqlite3.SQLITE_IOERR: "the disk gave an I/O error: read the kernel log, check free space and quota",
    sqlite3.SQLITE_BUSY: "another process holds the ledger: is a second daemon or a database shell using it?",
}
_SEE = "see sqlite.org/rescode.html"
_UNREAD = re.compile(r"error code=(\d{1,9})")


def is_damage(error: Exception) -> bool:
    """Return True if the error means a damaged SQLite file, rather than a disk that is full or missing."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:  # raised by Python: a text in the file is not UTF-8
        return isinstance(error, sqlite3.OperationalError) and "decode" in str(error)
    return _means_damage(code)


def _means_damage(code: int) -> bool:
    return code & 0xFF in _CORRUPT or code in (sqlite3.SQLITE_IOERR_SHORT_READ, sqlite3.SQLITE_IOERR_CORRUPTFS)


def check_verdict(verdict: str, path: Path) -> None:
    """Check the result of `PRAGMA quick_check`, which reports a page that could not be read as if it were damage.

    Raises LedgerCorrupt, or LedgerUnavailable where the disk gave an error.
    """
    if verdict == "ok":
        return
    unread = _UNREAD.search(verdict)
    if unread is not None and not _means_damage(code := int(unread[1])):
        advice = _ADVICE.get(code & 0xFF, _SEE)
        raise LedgerUnavailable(f"cannot use ledger {path}: a page cannot be read, error {code}; {advice}")
    raise LedgerCorrupt(f"ledger {path} is corrupt: {verdict}")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Translate errors as `translated` does, for code that only reads: unexpected values count as damage, too."""
    try:
        with translated(path):
            yield
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise LedgerCorrupt(f"ledger {path} is corrupt: {error}") from error


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and the operating system into a LedgerError about `path`."""
    try:
        yield
    except sqlite3.Error as error:
        if is_damage(error) or getattr(error, "sqlite_errorcode", 0) & 0xFF in _MISFITTING:
            raise LedgerCorrupt(f"ledger {path} is corrupt: {error}") from error
        advice = _ADVICE.get(getattr(error, "sqlite_errorcode", 0) & 0xFF, _SEE)
        raise LedgerUnavailable(f"cannot use ledger {path}: {error}; {advice}") from error
    except OSError as error:
        why = error.strerror or error
        raise LedgerUnavailable(
            f"cannot use ledger {path}: {why}; check the directory, its permissions and the disk"
        ) from error
