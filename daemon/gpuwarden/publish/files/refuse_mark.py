"""The file that makes Slurm's prolog refuse jobs while this node's health is unknown: `[slurm] on_stale = "refuse"`.

It is beside the state directory, in a folder that only root writes, and outlives a boot: it is needed most where the daemon never
came up. The prolog obeys it only if its own user, root, owns that folder and the state directory.
"""

from __future__ import annotations

import os
from pathlib import Path

from gpuwarden.base.background import BackgroundWriter
from gpuwarden.base.paths import beside_for_slurm
from gpuwarden.publish.files.writer import replace_file
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.facts import Stamp

NAME = "refuse"
TEXT = "Written by gpuwarden: Slurm's prolog refuses jobs while no verdict is fresh (slurm.on_stale). Removed when that changes.\n"
AGAIN_AFTER = 10.0
"""Seconds after which a failed write is tried again, and a successful one is checked."""
_STALLED = 5.0


class RefuseMark:
    """Keeps the file present, or absent, in a thread. `tend` as often as is convenient."""

    def __init__(self, state_dir: Path, clock: Clock, *, wanted: bool) -> None:
        self._path = beside_for_slurm(state_dir) / NAME
        self._wanted = wanted
        self._clock = clock
        self._next = float("-inf")
        self._error = ""
        self._writer = BackgroundWriter(
            "refuse mark", 1, newest_wins=True, on_error=self._failed, clock=lambda: clock().boottime
        )

    def tend(self) -> None:
        now = self._clock().boottime
        if now >= self._next:
            self._next = now + AGAIN_AFTER
            self._writer.submit(self._settle)

    def error(self, now: Stamp) -> str:
        """Why the prolog does not do what is configured; empty if it does."""
        stalled = self._writer.stalled_for(now.boottime)
        if stalled > _STALLED:
            return f"cannot read {self._path}: no response for {stalled:.0f} s; is its filesystem frozen?"
        return self._error

    async def flush(self, timeout: float) -> bool:  # noqa: ASYNC109 - returns False at the deadline, which is no error here
        return await self._writer.flush(timeout)

    def close(self, timeout: float) -> bool:
        """End the thread; False if it hangs. Blocks. The file stays: from now on this node's health is unknown."""
        return self._writer.close(timeout)

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
        replace_file(self._path, TEXT, mode=0o644)

    def _remove(self) -> None:
        try:
            self._path.unlink(missing_ok=True)
        except PermissionError:
            if self._path.parent.stat().st_uid == os.geteuid():
                raise  # else it is root's, of an earlier profile, and not obeyed beside the state directory of this user

    def _failed(self, error: Exception) -> None:
        why = error.strerror if isinstance(error, OSError) else repr(error)
        if self._wanted:
            what, then = "write", "jobs start while this node's health is unknown"
        else:
            what, then = "remove", "jobs are still refused while this node's health is unknown"
        self._error = f"cannot {what} {self._path}: {why}; {then}; see slurm.on_stale and docs/slurm.md"
