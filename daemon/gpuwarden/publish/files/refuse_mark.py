"""The file that has Slurm's prolog refuse jobs while nothing is known of this node: `[slurm] on_stale = "refuse"`.

It lies beside the state directory, in a folder that only root writes, and outlives a boot: it is needed most where the daemon never
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
"""Seconds after which what could not be done is tried again, and what was done is looked at again."""
_STALLED = 5.0


class RefuseMark:
    """Keeps the file there, or away, in a thread. `tend` as often as is convenient."""

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

    def trouble(self, now: Stamp) -> str:
        """Why the prolog does otherwise than is configured; empty if it does as it should."""
        stalled = self._writer.stalled_for(now.boottime)
        if stalled > _STALLED:
            return f"cannot look at {self._path}: no answer for {stalled:.0f} s; is its filesystem frozen?"
        return self._error

    async def flush(self, timeout: float) -> bool:  # noqa: ASYNC109 - says False at the deadline, which is no error here
        return await self._writer.flush(timeout)

    def close(self, timeout: float) -> bool:
        """End the thread; False if it hangs. Blocks. The file stays: from now on nothing is known of this node."""
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
                raise  # else it is root's, of an earlier profile, and not obeyed beside a state directory of ours

    def _failed(self, error: Exception) -> None:
        why = error.strerror if isinstance(error, OSError) else repr(error)
        if self._wanted:
            what, then = "write", "jobs start while nothing is known of this node"
        else:
            what, then = "remove", "jobs are still refused while nothing is known of this node"
        self._error = f"cannot {what} {self._path}: {why}; {then}; see slurm.on_stale and docs/slurm.md"
