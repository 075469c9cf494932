"""Makes `run` exit if the ledger has another major version, as for a fault in the configuration."""

from __future__ import annotations

import threading
from pathlib import Path

from gpuwarden.cli.parser import CommandError
from gpuwarden.ledger.errors import LedgerError, LedgerOfAnotherMajor
from gpuwarden.ledger.reader import read_only

WITHIN = 2.0
"""Time limit in seconds. With a hung disk the daemon starts anyway, judges from memory, and reports it."""


def refuse_another_major(path: Path) -> None:
    """Raises CommandError for another major version. The daemon runs with any other error of the ledger."""
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
