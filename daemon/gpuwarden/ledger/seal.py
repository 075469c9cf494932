"""A small file beside the ledger that records how far it went and what it held, so that a loss does not pass for an empty memory.

SQLite ignores the end of its log from the first damaged frame on, and pages carry no checksum: a flipped bit can take a
latched failure away without an error. The seal is written after the log was moved into the database and is synced itself;
what it covers is on the disk in two places that do not fail together.
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

    `machine`: as the ledger had it. `last`: id of the newest event. `checkpoints`: how many were written so far. `digest`: SHA-256 of the
    last of them, through event `through`, and of the events after it up to `last`, row by row, of `era`.
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
    """Replaces it atomically; it is on disk when this returns. Raises OSError."""
    replace_file(path_of(ledger), json.dumps(asdict(seal)), mode=0o640, synced=True)


def read(ledger: Path) -> Seal | None:
    """Read the seal. None if there is none, or it cannot be read or parsed: then nothing is checked."""
    try:
        seal = from_wire(Seal, json.loads(read_regular(path_of(ledger), _SIZE, follow=False)))
        return seal if isinstance(json.loads(seal.machine or "{}"), dict) else None
    except (OSError, ValueError, RecursionError):
        return None
