"""Finds workers of earlier tests that could not be killed: they sleep in a hung driver, and no other may be started.

Any user can make a process of that name sleep so, for example with vfork(2): only those of users who run tests count.
"""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

from gpuwarden.features.active_test.tester.surroundings import identity
from gpuwarden_collectors.base import CollectorError, SourceAbsent
from gpuwarden_collectors.host_facts import TESTER
from gpuwarden_collectors.host_files import read_bytes
from gpuwarden_collectors.process_stat import process_ids, process_stat

CHECKS, APART = 5, 0.2
"""A process that waits for a disk is also in D state, but not for a whole second."""
_PROCESSES_MOST = 100_000
_UID = re.compile(rb"^Uid:\t(\d+)\t", re.MULTILINE)
"""The real uid in /proc/PID/status (proc(5))."""


async def left_behind(proc: Path) -> tuple[int, ...]:
    """Return their process numbers. Without any it takes as long as reading /proc once."""
    try:
        sleepers = [pid for pid in process_ids(os.fspath(proc), _PROCESSES_MOST) if _sleeps(proc, pid)]
    except (SourceAbsent, CollectorError):
        return ()
    for _ in range(CHECKS - 1):
        if not sleepers:
            break
        await asyncio.sleep(APART)
        sleepers = [pid for pid in sleepers if _sleeps(proc, pid)]
    users = {b"%d" % uid for uid in (0, os.geteuid(), identity().uid) if uid is not None} if sleepers else set()
    return tuple(pid for pid in sleepers if _user(proc, pid) in users)


def _sleeps(proc: Path, pid: int) -> bool:
    stat = process_stat(proc, pid)
    return stat is not None and stat.name == TESTER.encode() and stat.state == "D"


def _user(proc: Path, pid: int) -> bytes:
    """Return the real uid of a process; empty if it has ended."""
    try:
        match = _UID.search(read_bytes(proc / str(pid) / "status"))
    except OSError:
        return b""
    return match[1] if match else b""
