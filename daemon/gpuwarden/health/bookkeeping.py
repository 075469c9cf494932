"""Events that only record the judge's counts and measurements for a restart: nothing has happened to the node. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from gpuwarden.health.model import EventKind

_REMEMBERED = ("host@board/", "host@job/")
"""Keys of what later readings are compared with: a board's remapped rows, a job's own past, which is forgotten when the job ends."""
OF_TESTS = ("figures", "started", "kernels_version", "band", "clocks_set", "workers", "until_boottime", "until_wall")
"""Data of events of active tests that only the judge needs."""
OF_GATES = ("since_boottime", "since_wall", "boot", "results", "run", "again_boottime", "again_wall", "overtaken")
"""Data of events of the return gate that only policy needs."""
OF_FINDINGS = ("first_boottime", "first_wall", "latch", "links", "signs", "sequence", "bursts", "processes")
"""Data of events of findings that only the judge needs."""


def is_bookkeeping(kind: str, key: str, data: Mapping[str, object]) -> bool:
    """True if the event has no log line above debug and no line in `gpuwarden events`. `kind` and `key` are in their text form."""
    match kind:
        case EventKind.COUNTED:
            return True
        case EventKind.HOST_LEARNED | EventKind.HOST_FORGOTTEN:
            return key.startswith(_REMEMBERED)
        case EventKind.TEST_BEGUN:  # the second one of a test, which names its workers
            return bool(data.get("workers"))
    return False
