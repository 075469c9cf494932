"""A small file next to the ledger with its extent and digest, so that lost events are detected.

SQLite ignores the end of its WAL from the first damaged frame on, and pages have no checksum: a flipped bit can remove
a latched failure without an error. The seal is written and synced after the WAL was moved into the database, so a fault
is unlikely to damage both in the same way.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from gpuwarden.base.files import read_regular, replace_file
from gpuwarden_collectors.codec import from_wire
from gpuwarden_collectors.dataclass import dataclass

SUFFIX = "-seal"
_SIZE = 4096  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """The extent and digest of a ledger.

    `machine`: as recorded in the ledger. `last`: id of the newest event. `checkpoints`: number written so far.
    `digest`: SHA-256 over the rows of `era`: the last checkpoint, which covers events through `through`, and the events
    after it up to `last`.
    """

    schema: str
    era: int
    checkpoints: int
    through: int
    last: int
    digest: str
    machine: str = ""


def path_of(ledger: Path) -> Path:
    return ledger.with_name(f"{ledger.name}{SUFFIX}")


def digest(rows: list[tuple[object, ...]]) -> str:
    """SHA-256 of rows as they are stored."""
    made = hashlib.sha256()
    for row in rows:
        made.update(json.dumps(row, separators=(",", ":")).encode("utf-8", "backslashreplace"))
    return made.hexdigest()


def write(ledger: Path, seal: Seal) -> None:
    """Replace the seal atomically; it is on disk when this returns. Raises OSError."""
    replace_file(path_of(ledger), json.dumps(asdict(seal)), mode=0o640, synced=True)


def read(ledger: Path) -> Seal | None:
    """Read the seal. None if there is none, or it cannot be read or parsed; the ledger is then not checked."""
    try:
        seal = from_wire(Seal, json.loads(read_regular(path_of(ledger), _SIZE, follow=False)))
        return seal if isinstance(json.loads(seal.machine or "{}"), dict) else None
    except (OSError, ValueError, RecursionError):
        return None
