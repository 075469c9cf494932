"""The black box in the status document."""

from __future__ import annotations

from typing import Any

from gpuwarden.features.black_box.shown import of
from gpuwarden.publish.snapshot import Snapshot

Document = dict[str, Any]


def document(snapshot: Snapshot) -> Document:
    shown = of(snapshot)
    return {
        "black_box": None
        if shown is None
        else {
            "seconds": round(shown.seconds),
            "bytes": shown.size,
            "lost_records": shown.lost,
            "kept": [box.document() for box in shown.boxes],
        }
    }
