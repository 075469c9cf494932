"""A name in the run directory that marks the node as healthy for root's health check, if another user owns the folder.

`.healthy.BOOT.N` is a link to the verdict. It means healthy until the end of the N-th period of eight seconds of this
boot; BOOT is the first eight characters of the boot id. A script that finds the name opens no file, so no pipe, link or
endless file can block it, and starts no process. Without a valid name it reads the verdict.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from gpuwarden.health.model import Health
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden_collectors.facts import Stamp

PERIOD = 8
"""Seconds. The health check accepts the names of the current and the next period, so a name is valid for 16 s at most,
and never longer than the verdict. By default a verdict is fresh for 15 s and renewed every 5 s, so each name is valid
for at least 7 s, until the next one exists. With a shorter `fresh_for` there may be none."""
_PREFIX = ".healthy."
_BOOT = 8  # characters


def mark_name(snapshot: Snapshot, now: Stamp) -> str:
    """Return the name, or "" if the node is not healthy or the verdict not fresh until the end of this period."""
    service = snapshot.service
    if snapshot.observed is None or service.simulated or snapshot.health(now) is not Health.HEALTHY:
        return ""
    present = int(now.boottime) // PERIOD
    last = min(int(snapshot.observed.boottime + service.fresh_for) // PERIOD - 1, present + 1)
    return f"{_PREFIX}{service.boot_id[:_BOOT]}.{last}" if last >= present else ""


class HealthyMark:
    """The mark in the run directory. Never raises: without a valid name the verdict is read, and old names expire."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._name: str | None = None  # unknown before the first `show`: an earlier daemon may have left marks

    def show(self, name: str) -> None:
        """Make `name` the only mark in the run directory; if it is empty, remove every mark."""
        if name == self._name:
            return
        with contextlib.suppress(OSError):
            for old in self._run_dir.glob(f"{_PREFIX}*"):
                if old.name != name:
                    old.unlink()
            if name:
                with contextlib.suppress(FileExistsError):
                    (self._run_dir / name).symlink_to("verdict")
            self._name = name
