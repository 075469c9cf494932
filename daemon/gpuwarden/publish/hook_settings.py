"""What the scripts that Slurm runs need of the configuration, as `key=value` lines that a shell reads by itself.

They lie in the state directory, since they are needed most where the daemon does not run: after a boot it may never have
come up. Only the scripts' own user may have written them, or they are not obeyed.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from gpuwarden.publish.files import replace_file

NAME = "slurm-hooks"


class Options(Protocol):
    @property
    def on_stale(self) -> str: ...
    @property
    def drain_by(self) -> str: ...
    @property
    def conf(self) -> Path | None: ...


def settings_text(options: Options, *, enabled: bool, mode: str, config: Path | None, command: Path | None) -> str:
    """Not `enabled`: the scripts only tell what they see."""
    return "".join(
        f"{key}={value}\n" for key, value in _fields(options, enabled, mode, config, command) if "\n" not in value
    )


def _fields(
    options: Options, enabled: bool, mode: str, config: Path | None, command: Path | None
) -> Iterator[tuple[str, str]]:
    yield "format", "1"
    yield "mode", mode
    yield "on_stale", options.on_stale if enabled else "ignore"
    yield "drain_by", options.drain_by if enabled else "daemon"
    for key, path in (("command", command), ("config", config), ("slurm_conf", options.conf)):
        if path is not None:
            yield key, str(path)


def write_settings(state_dir: Path, text: str) -> None:
    """Raises OSError."""
    replace_file(state_dir / NAME, text, mode=0o600)


def own_command() -> Path | None:
    """The path of this program: Slurm's scripts have no PATH, and it may be installed anywhere."""
    beside = Path(sys.executable).with_name("gpuwarden")
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("gpuwarden")
    return None if found is None else Path(found).absolute()
