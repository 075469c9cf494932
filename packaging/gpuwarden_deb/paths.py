"""Paths while the package is built, and once it is installed."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGING = ROOT / "packaging"
REQUIREMENTS = PACKAGING / "requirements.lock"
TOOLS = PACKAGING / "build.lock"
WORK = ROOT / ".build" / "deb"
"""Everything that is made on the way; wheels and tools are kept in it, by the hash of their lock."""

HOME = Path("/opt/gpuwarden")
COMMAND = HOME / "bin" / "gpuwarden"
LAUNCHER = PACKAGING / "launcher"
"""What a package has at COMMAND: a wheel's own script would start with the PYTHONPATH and PYTHONHOME of the caller's shell."""


class BuildError(Exception):
    """The package cannot be built here. The message says what is missing or wrong, and what to do."""
