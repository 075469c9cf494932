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


def _try(attempt: Try) -> Document:
    return {
        "finding": attempt.finding,
        "step": str(attempt.what),
        "begun": rfc3339(attempt.at.wall),
        "by": attempt.by or None,
        "outcome": None if attempt.outcome is None else attempt.outcome.value,
        "ended": None if attempt.ended is None else rfc3339(attempt.ended.wall),
        "text": attempt.text,
    }
