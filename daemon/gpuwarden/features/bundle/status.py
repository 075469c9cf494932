"""The newest archive in the status document."""

from __future__ import annotations

from typing import Any

from gpuwarden.features.bundle.memory import BundleMade
from gpuwarden.features.bundle.snapshot import of
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden.publish.times import rfc3339


def document(snapshot: Snapshot) -> dict[str, Any]:
    if (answer := of(snapshot)) is None:
        return {"bundle": None}
    outcome = answer.what
    return {
        "bundle": {
            "finding": outcome.finding,
            "at": rfc3339(answer.at.wall),
            "made": isinstance(outcome, BundleMade),
            "file": outcome.file if isinstance(outcome, BundleMade) else "",
            "missing": outcome.missing if isinstance(outcome, BundleMade) else "",
            "why": "" if isinstance(outcome, BundleMade) else outcome.why,
        }
    }
