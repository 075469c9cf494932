"""A name in the run directory by which root's health check knows that this node is healthy, where that folder is another user's.

`.healthy.BOOT.N`, a link that leads to the verdict: healthy until the end of the N-th eight seconds of this boot, BOOT being the first
eight digits of its id. A script that finds the name needs to open nothing, so that no pipe, link or endless file can hold it up,
and starts no process. Without a name that counts it reads the verdict.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from gpuwarden.health.model import Health
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden_collectors.facts import Stamp

PERIOD = 8
"""Seconds. The health check accepts the name of the present period and that of the next: a name counts for 16 s at most, and never for
longer than the verdict. By default a verdict is fresh for 15 s and renewed every 5 s: each name then counts for 7 s at least, until the
next one is there. Where `fresh_for` is shorter there may be none."""
_PREFIX = ".healthy."
_BOOT = 8  # characters


def mark_name(snapshot: Snapshot, now: Stamp) -> str:
    """Empty where the node is not healthy, or the verdict not fresh to the end of this period."""
    service = snapshot.service
    if snapshot.observed is None or service.simulated or snapshot.health(now) is not Health.HEALTHY:
        return ""
    present = int(now.boottime) // PERIOD
    last = min(int(snapshot.observed.boottime + service.fresh_for) // PERIOD - 1, present + 1)
    return f"{_PREFIX}{service.boot_id[:_BOOT]}.{last}" if last >= present else ""


class HealthyMark:
    """Never raises: where the name cannot be made or removed the verdict is read, or an old name counts for 16 s at most."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._name: str | None = None  # not known before the first `show`: an earlier daemon may have left some

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
