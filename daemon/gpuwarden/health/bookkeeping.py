"""Identifies events that only record counts and measurements for a restart, not a change of the node. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from gpuwarden.health.model import EventKind

_REMEMBERED = ("host@board/", "host@job/")
"""Keys of data for comparison with later readings: a board's remapped rows; a job's past, dropped when it ends."""
OF_TESTS = ("figures", "started", "kernels_version", "band", "clocks_set", "workers", "until_boottime", "until_wall")
"""Data of events of active tests that only the judge needs."""
OF_GATES = ("since_boottime", "since_wall", "boot", "results", "run", "again_boottime", "again_wall", "overtaken")
"""Data of events of the return gate that only policy needs."""
OF_FINDINGS = ("first_boottime", "first_wall", "latch", "links", "signs", "sequence", "bursts", "processes")
"""Data of events of findings that only the judge needs."""


def is_bookkeeping(kind: str, key: str, data: Mapping[str, object]) -> bool:
    """Return True if the event is logged only at debug level and not shown by `gpuwarden events`. `key`: as text."""
    match kind:
        case EventKind.COUNTED:
            return True
        case EventKind.HOST_LEARNED | EventKind.HOST_FORGOTTEN:
            return key.startswith(_REMEMBERED)
        case EventKind.TEST_BEGUN:  # the second one of a test, which names its workers
            return bool(data.get("workers"))
    return False
