"""Workers of earlier tests that could not be ended: they sleep in a driver that hangs, into which no further one is started."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from gpuwarden_collectors.active_test.level import WORKER
from gpuwarden_collectors.base import CollectorError, SourceAbsent
from gpuwarden_collectors.process_stat import process_ids, process_stat

CHECKS, APART = 5, 0.2
"""A process that waits for a disk is in D state, too, but not for a second."""
_PROCESSES_MOST = 100_000


async def left_behind(proc: Path) -> tuple[int, ...]:
    """Their process numbers; without any it takes as long as reading /proc once."""
    try:
        found = [pid for pid in process_ids(os.fspath(proc), _PROCESSES_MOST) if _sleeps(proc, pid)]
    except (SourceAbsent, CollectorError):
        return ()
    for _ in range(CHECKS - 1):
        if not found:
            break
        await asyncio.sleep(APART)
        found = [pid for pid in found if _sleeps(proc, pid)]
    return tuple(found)


def _sleeps(proc: Path, pid: int) -> bool:
    stat = process_stat(proc, pid)
    return stat is not None and stat.name == WORKER.encode() and stat.state == "D"
