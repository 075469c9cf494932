"""Records of jobs in the ledger, as far back as it goes."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from gpuwarden.features.why.memory import record_of
from gpuwarden.features.why.model import Record, job_subject
from gpuwarden.health.model import EventKind
from gpuwarden.ledger.reader import read_only


def ended_of(ledger: Path, names: Collection[str]) -> list[Record]:
    """Return the newest records of these names, the oldest first. Blocks. Raises LedgerError."""
    with read_only(ledger) as reader:
        subjects = [str(job_subject(name)) for name in names]
        events = reader.events(kinds=(EventKind.JOB_ENDED,), subjects=subjects, newest=True)
    return [record for recorded in events if (record := record_of(recorded.event)) is not None]
