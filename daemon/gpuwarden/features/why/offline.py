"""A job from the ledger itself, for when no daemon runs. Nothing is written."""

from __future__ import annotations

from pathlib import Path

from gpuwarden.cli.ledger_events import ledger_path
from gpuwarden.cli.parser import UNAVAILABLE, CommandError
from gpuwarden.features.why.document import Document, of_record
from gpuwarden.features.why.history import ended_of
from gpuwarden.features.why.lookup import newest
from gpuwarden.features.why.names import NO_SUCH_JOB, names_of
from gpuwarden.ledger.errors import LedgerError


def record_in(state_dir: Path | None, job: str) -> Document:
    """Return the document of an ended job. Whoever can read the ledger may see all jobs. Raises CommandError."""
    try:
        names = names_of(job)
    except ValueError as error:
        raise CommandError(str(error)) from None
    path = ledger_path(state_dir)
    try:
        records = ended_of(path, names)
    except LedgerError as error:
        raise CommandError(str(error), UNAVAILABLE) from error
    newest_job = newest((), records, lambda _, __: True, names)
    if newest_job is None or newest_job.record is None:
        raise CommandError(f"no job {job!r} that has ended is in {path}", NO_SUCH_JOB)
    return of_record(newest_job.record, {}, older=newest_job.older)
