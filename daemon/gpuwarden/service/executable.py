"""Which gpuwarden a unit may start: one that stays where it is, that its users may run, and that nobody but root can replace."""

from __future__ import annotations

import stat
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

INSTEAD = "UV_TOOL_DIR=/opt UV_TOOL_BIN_DIR=/usr/local/bin UV_PYTHON_INSTALL_DIR=/opt/python uv tool install gpuwarden"
"""Where units may start it; the same with pip: `python3 -m venv /opt/gpuwarden && /opt/gpuwarden/bin/pip install gpuwarden`."""
_TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm", "/run")  # noqa: S108 - none is used
_TAG = "CACHEDIR.TAG"  # bford.info/cachedir: uv's cache has it
_CACHES = (".cache", "pipx-cache")


@dataclass(frozen=True, slots=True)
class Executables:
    """Of the installation that runs now. `base`: the Python that its environment was made of."""

    command: Path
    python: Path
    base: Path

    @classmethod
    def of_this(cls) -> Executables:
        python = Path(sys.executable)
        return cls(Path(sysconfig.get_path("scripts")) / "gpuwarden", python, python.resolve())


def refusal(found: Executables, temporary: tuple[str, ...] = _TEMPORARY) -> str:
    """Why a unit may not start it; "" if it may."""
    if not found.command.is_file():
        return f"{found.command} does not exist: gpuwarden was not installed as a command; install it: {INSTEAD}"
    for path in (found.command, found.python, found.base):
        why = _ephemeral(path, temporary) or next(_unfit(path), "")
        if why:
            return f"{path} cannot be started by a unit: {why}; install it elsewhere: {INSTEAD}"
    return ""


def _ephemeral(path: Path, temporary: tuple[str, ...]) -> str:
    if any(path.is_relative_to(folder) for folder in temporary):
        return "it is in a folder for temporary files"
    if any(part in _CACHES for part in path.parts) or any((folder / _TAG).exists() for folder in path.parents):
        return "it is in a cache (uvx, pipx run), which may be emptied at any time"
    return ""


def _unfit(path: Path) -> Iterator[str]:
    """The daemon runs as a user of its own, and with the profile enforce as root."""
    for each in (path.resolve(), *path.resolve().parents):
        found = each.stat()
        if not found.st_mode & stat.S_IXOTH:
            yield f"{each} is closed to the daemon's user"
        if found.st_uid != 0 or (found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX):
            yield f"{each} may be written by others than root, who may start it as root"
