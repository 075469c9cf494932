"""What can be configured about site checks: the keys of `[collectors.plugin]` and of `[plugins.NAME]`."""

from __future__ import annotations

from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.options import bounded


@dataclass(frozen=True, slots=True)
class PluginOptions:
    """How all site checks `[plugins.NAME]` are run."""

    enabled: bool = True
    """Run site checks."""
    limit: int = bounded(3, 1, 16)
    """How many site checks run at a time."""
    runner: str = ""
    """Path of the socket of a service that runs the site checks; gpuwarden's systemd unit sets it. Empty: the daemon runs them itself."""


@dataclass(frozen=True, slots=True)
class SiteCheck:
    """A site check: a program whose exit code is a verdict ([site-checks.md](../use/site-checks.md))."""

    command: tuple[str, ...] = ()
    """Absolute path of the program, and its arguments. It is run without a shell. Required."""
    enabled: bool = True
    """Run this check."""
    interval: float = bounded(60.0, 1.0, 86_400.0)
    """Time between two runs."""
    timeout: float = bounded(30.0, 0.1, 3_600.0)
    """Time limit of a run."""
    warning_codes: tuple[int, ...] = (1,)
    """Exit codes that mean a warning."""
    failure_codes: tuple[int, ...] = (2,)
    """Exit codes that mean a failure. 0 means ok; a code in neither list means unknown."""
