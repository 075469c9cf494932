"""Slurm's own commands, some of which hang for good, or until they are released: as with a controller that hangs."""

from __future__ import annotations

import shutil
from pathlib import Path

_SCRIPT = """#!/bin/sh
cd {folder}
if [ -e hangs ] && echo "${{0##*/}} $*" | grep -Eqf hangs; then
    echo "${{0##*/}} $*" >>hanging
    exec sleep 1000
fi
if [ -e held ] && echo "${{0##*/}} $*" | grep -Eqf held; then
    echo "${{0##*/}} $*" >>hanging
    while [ -e held ]; do sleep 0.05; done
fi
exec {program} "$@"
"""


class HangingCommands:
    """`folder` is for `slurm.folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for name in ("scontrol", "sinfo", "squeue", "scancel"):
            program = shutil.which(name, path="/usr/bin:/usr/sbin:/usr/local/bin")
            (folder / name).write_text(_SCRIPT.format(folder=folder, program=program))
            (folder / name).chmod(0o755)

    def hang(self, pattern: str) -> None:
        """Let commands hang from now on whose name and arguments, as `sinfo --all`, match this extended regular expression."""
        (self.folder / "hangs.new").write_text(f"{pattern}\n")
        (self.folder / "hangs.new").replace(self.folder / "hangs")

    def hold(self, pattern: str) -> None:
        """The same, until they are released."""
        (self.folder / "held.new").write_text(f"{pattern}\n")
        (self.folder / "held.new").replace(self.folder / "held")

    def release(self) -> None:
        (self.folder / "held").unlink()

    @property
    def hanging(self) -> list[str]:
        """Return the commands that hung, with their arguments."""
        path = self.folder / "hanging"
        return path.read_text().splitlines() if path.exists() else []
