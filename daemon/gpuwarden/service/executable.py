"""Checks that a unit may start this gpuwarden: permanent, executable for the daemon's user, changed only by root."""

from __future__ import annotations

import stat
import sys
import sysconfig
from pathlib import Path

from gpuwarden.service.code import CodeError, loaded, writable
from gpuwarden_collectors.dataclass import dataclass

INSTEAD = "UV_TOOL_DIR=/opt UV_TOOL_BIN_DIR=/usr/local/bin UV_PYTHON_INSTALL_DIR=/opt/python uv tool install gpuwarden"
"""An installation for units; by pip: `python3 -m venv /opt/gpuwarden && /opt/gpuwarden/bin/pip install gpuwarden`."""
NAMED_MOST = 20
_TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm", "/run")  # noqa: S108 - none is used
_TAG = "CACHEDIR.TAG"  # bford.info/cachedir: uv's cache has it
_CACHES = (".cache", "pipx-cache")


@dataclass(frozen=True, slots=True)
class Executables:
    """Executables of the running installation. `base`: the Python from which its virtual environment was created."""

    command: Path
    python: Path
    base: Path

    @classmethod
    def of_this(cls) -> Executables:
        python = Path(sys.executable)
        return cls(Path(sysconfig.get_path("scripts")) / "gpuwarden", python, python.resolve())


def refusals(installed: Executables, temporary: tuple[str, ...] = _TEMPORARY) -> list[str]:
    """Return the reasons why a unit may not start it, each with advice; empty if it may."""
    if not installed.command.is_file():
        return [f"{installed.command} does not exist: gpuwarden was not installed as a command; install it: {INSTEAD}"]
    programs = (installed.command, installed.python, installed.base)
    reasons = {path: _ephemeral(path, temporary) or _closed(path) for path in programs}
    unfit = [
        f"{path} cannot be started by a unit: {why}; install it elsewhere: {INSTEAD}"
        for path, why in reasons.items()
        if why
    ]
    try:
        changeable = [str(each) for each in writable([*programs, *loaded(installed.python)])]
    except CodeError as error:
        return [*unfit, f"{error}; install it anew: {INSTEAD}"]
    more = len(changeable) - NAMED_MOST
    rest = [f"and {more} more"] if more > 0 else []
    return [*unfit, *changeable[:NAMED_MOST], *rest]


def _ephemeral(path: Path, temporary: tuple[str, ...]) -> str:
    if any(path.is_relative_to(folder) for folder in temporary):
        return "it is in a folder for temporary files"
    if any(part in _CACHES for part in path.parts) or any((folder / _TAG).exists() for folder in path.parents):
        return "it is in a cache (uvx, pipx run), which may be emptied at any time"
    return ""


def _closed(path: Path) -> str:
    """Return why users other than root may not enter or run the path, else "": the daemon has its own user."""
    for each in (path.resolve(), *path.resolve().parents):
        if not each.stat().st_mode & stat.S_IXOTH:
            return f"{each} is closed to the daemon's user"
    return ""
