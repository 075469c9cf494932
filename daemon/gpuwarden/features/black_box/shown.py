"""The published state of the black box: a part of the snapshot."""

from __future__ import annotations

from gpuwarden.features.black_box.boxes import Box
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden_collectors.dataclass import dataclass

NAME = "black_box"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    seconds: float = 0.0
    """Time that the ring holds."""
    size: int = 0
    """Bytes of the ring."""
    lost: int = 0
    """Records since the daemon started that are in no segment."""
    boxes: tuple[Box, ...] = ()
    """The boxes that are kept, the oldest first."""


def of(snapshot: Snapshot) -> Shown | None:
    """Return the part of the black box in a snapshot; None if it is off."""
    published: Shown | None = snapshot.features.get(NAME)
    return published
