"""Events that only keep for a restart what the judge has counted or measured: nothing has happened to the node. Pure."""

from __future__ import annotations

from gpuwarden.health.model import EventKind

_LEARNED = ("host@board/", "host@job/")
"""Of HOST_LEARNED, keys of what later readings are compared with: a board's remapped rows, a job's own past."""


def is_bookkeeping(kind: str, key: str) -> bool:
    """`kind` and `key` of an event, in their text form; such events have no log line above debug, and no line in `gpuwarden events`."""
    return kind == EventKind.COUNTED or (kind == EventKind.HOST_LEARNED and key.startswith(_LEARNED))
