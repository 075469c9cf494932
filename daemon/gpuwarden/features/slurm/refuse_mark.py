"""The file that makes Slurm's prolog refuse jobs while this node's health is unknown: `[slurm] on_stale = "refuse"`.

It is next to the state directory, in a folder that only root can write, and outlives a boot: it matters most if the
daemon never started. The prolog obeys it only if its own user, root, owns that folder and the state directory.
"""

from __future__ import annotations

import os
from pathlib import Path

from gpuwarden.base.files import replace_file
from gpuwarden.base.paths import beside_for_slurm
from gpuwarden.publish.files.writer import Kept
from gpuwarden_collectors.base import Clock

NAME = "refuse"
TEXT = "Written by gpuwarden: Slurm's prolog refuses jobs while no verdict is fresh (slurm.on_stale). Removed when that changes.\n"
AGAIN_AFTER = 10.0
"""Seconds after which a failed write is tried again, and a successful one is checked."""


class RefuseMark(Kept):
    """Keeps the file present, or absent, in a thread. `tend` may be called at any rate."""

    def __init__(self, state_dir: Path, clock: Clock, *, wanted: bool) -> None:
        verb, then = ("write", "jobs start") if wanted else ("remove", "jobs are still refused")
        remedy = f"{then} while this node's health is unknown; see slurm.on_stale and docs/use/slurm.md"
        super().__init__(beside_for_slurm(state_dir) / NAME, clock, remedy=remedy, name="refuse mark", verb=verb)
        self._wanted = wanted
        self._clock = clock
        self._next = float("-inf")

    def tend(self) -> None:
        now = self._clock().boottime
        if now >= self._next:
            self._next = now + AGAIN_AFTER
            self._writer.submit(self._settle)

    def _settle(self) -> None:
        if self._wanted:
            self._write()
        else:
            self._remove()
        self._error = ""

    def _write(self) -> None:
        try:
            if self._path.read_text(encoding="utf-8") == TEXT:
                return
        except (OSError, ValueError):
            pass
        self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        replace_file(self._path, TEXT, mode=0o644)

    def _remove(self) -> None:
        try:
            self._path.unlink(missing_ok=True)
        except PermissionError:
            if self._path.parent.stat().st_uid == os.geteuid():
                raise  # else root's, of an earlier profile, which is not obeyed next to this user's state directory
