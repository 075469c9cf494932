"""Before anything starts: a ledger of another major version ends `run`, as a fault in the configuration does."""

from __future__ import annotations

import threading
from pathlib import Path

from gpuwarden.cli.parser import CommandError
from gpuwarden.ledger.errors import LedgerError, LedgerOfAnotherMajor
from gpuwarden.ledger.reader import read_only

WITHIN = 2.0
"""Seconds. A disk that hangs keeps no daemon from starting: it then judges from memory, and reports it."""


def refuse_another_major(path: Path) -> None:
    """Raises CommandError. With any other error of the ledger the daemon runs."""
    refused: list[LedgerOfAnotherMajor] = []
    thread = threading.Thread(target=_check, args=(path, refused), name="ledger version", daemon=True)
    thread.start()
    thread.join(WITHIN)
    if refused:
        raise CommandError(str(refused[0]))


def _check(path: Path, refused: list[LedgerOfAnotherMajor]) -> None:
    try:
        read_only(path).close()
    except LedgerOfAnotherMajor as error:
        refused.append(error)
    except LedgerError:
        return
