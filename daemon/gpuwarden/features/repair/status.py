"""Repairs in the status document."""

from __future__ import annotations

from typing import Any

from gpuwarden.features.repair.model import Try
from gpuwarden.features.repair.shown import of
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden.publish.times import rfc3339

Document = dict[str, Any]


def document(snapshot: Snapshot) -> Document:
    shown = of(snapshot)
    return {
        "repair": {
            "allowed": list(shown.allowed),
            "state": shown.state,
            "finding": shown.finding or None,
            "step": shown.step or None,
            "text": shown.text,
            "forbidden_by": [
                {"precondition": obstacle.precondition.value, "why": obstacle.text} for obstacle in shown.forbidden_by
            ],
            "tries": [_try(attempt) for attempt in shown.tries],
        }
    }


def _try(one: Try) -> Document:
    return {
        "finding": one.finding,
        "step": str(one.what),
        "begun": rfc3339(one.at.wall),
        "by": one.by or None,
        "outcome": None if one.outcome is None else one.outcome.value,
        "ended": None if one.ended is None else rfc3339(one.ended.wall),
        "text": one.text,
    }
