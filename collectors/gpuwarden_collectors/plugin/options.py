"""What can be configured about site checks: the keys of `[collectors.plugin]` and of `[plugins.NAME]`."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwarden_collectors.options import bounded


@dataclass(frozen=True, slots=True)
class PluginOptions:
    """How the site checks `[plugins.NAME]` are run, all of them."""

    enabled: bool = True
    """Run them."""
    limit: int = bounded(3, 1, 16)
    """How many run at a time."""
    runner: str = ""
    """A socket on which another service runs them, as the unit of systemd has it. Empty: they are the daemon's children."""


@dataclass(frozen=True, slots=True)
class SiteCheck:
    """A site check: a program whose exit code is a verdict ([site-checks.md](site-checks.md))."""

    command: tuple[str, ...] = ()
    """The program, by its whole path, and its arguments; no shell reads it."""
    enabled: bool = True
    """Run it."""
    interval: float = bounded(60.0, 1.0, 86_400.0)
    """Time between two runs."""
    timeout: float = bounded(30.0, 0.1, 3_600.0)
    """Time for a run."""
    warning_codes: tuple[int, ...] = (1,)
    """Exit codes that are a warning."""
    failure_codes: tuple[int, ...] = (2,)
    """Exit codes that are a failure. 0 is ok, and what is in neither list is unknown."""
