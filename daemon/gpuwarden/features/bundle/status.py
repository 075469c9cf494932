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
    what = answer.what
    return {
        "bundle": {
            "finding": what.finding,
            "at": rfc3339(answer.at.wall),
            "made": isinstance(what, BundleMade),
            "file": what.file if isinstance(what, BundleMade) else "",
            "missing": what.missing if isinstance(what, BundleMade) else "",
            "why": "" if isinstance(what, BundleMade) else what.why,
        }
    }
