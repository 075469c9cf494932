"""What an archive is asked for."""

from __future__ import annotations

from pathlib import Path

from gpuwarden.config.model import Config
from gpuwarden_collectors.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One archive, as it was asked for."""

    findings: tuple[str, ...]
    """Ids of findings; empty: all failures in force."""
    config: Config
    """The configuration in force, or the defaults."""
    config_fault: str = ""
    """Why the configuration cannot be read, in words that hold nothing of it; empty if it can."""
    config_file: Path | None = None
    """The file that was named; None: the usual one."""
    run_dir: Path
    """Of the daemon."""
    state_dir: Path
    """Of the daemon."""
    anonymise: bool = False
    """Replace the names of hosts, users, jobs and addresses."""
