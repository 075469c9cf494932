"""Reads events from the ledger when no daemon runs. Writes nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from gpuwarden.base.paths import LEDGER
from gpuwarden.cli.parser import UNAVAILABLE, CommandError
from gpuwarden.config.model import ConfigError, load
from gpuwarden.config.sources import Sources
from gpuwarden.ledger.errors import LedgerError
from gpuwarden.ledger.reader import read_only
from gpuwarden.publish.status import event


def ledger_events(state_dir: Path | None, since: float, limit: int) -> list[dict[str, Any]]:
    """The newest events of the ledger, in the daemon's format. Raises CommandError."""
    path = ledger_path(state_dir)
    try:
        with read_only(path) as ledger:
            return [event(recorded.event) for recorded in ledger.events(since=since, limit=limit, newest=True)]
    except LedgerError as error:
        raise CommandError(str(error), UNAVAILABLE) from error


def ledger_path(state_dir: Path | None) -> Path:
    """Path of the ledger in `state_dir`, by default the configured one. Raises CommandError."""
    return (state_dir or _configured()) / LEDGER


def _configured() -> Path:
    try:
        return load(Sources(environment=os.environ)).state.dir
    except ConfigError as error:
        raise CommandError(f"cannot find the ledger, because the configuration cannot be read:\n{error}") from error
