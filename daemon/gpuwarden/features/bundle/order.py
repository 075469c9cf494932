"""The order for an archive."""

from __future__ import annotations

from pathlib import Path

from gpuwarden.config.model import Config
from gpuwarden_collectors.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One requested archive."""

    findings: tuple[str, ...]
    """Ids of findings; empty: all failures in force."""
    config: Config
    """The configuration in force, or the defaults."""
    config_fault: str = ""
    """Why the configuration cannot be read, in a text that quotes nothing of it; empty if it can."""
    config_file: Path | None = None
    """The configuration file named on the command line; None: the default file."""
    run_dir: Path
    """Run directory of the daemon."""
    state_dir: Path
    """State directory of the daemon, as named or configured."""
    state_dir_named: bool = False
    """It was named on the command line. Otherwise that of a daemon that answers takes its place."""
    anonymise: bool = False
    """Replace the names of hosts, users, jobs and addresses."""
