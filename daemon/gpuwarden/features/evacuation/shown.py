"""The published state of evacuations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from gpuwarden.features.evacuation.policy.model import Evacuation, Given
from gpuwarden.publish.metrics.histogram import Histogram
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden_collectors.dataclass import dataclass

NAME = "evacuation"

NOTICE_TO_SIGNAL = Histogram.of(0.05, 0.1, 0.2, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evacuations:
    """Jobs on a machine that is about to end."""

    evacuations: tuple[Evacuation, ...] = ()
    """Evacuations in progress; if there is none, the last one."""
    preview: tuple[str, ...] = ()
    """Steps that follow, or would follow in mode enforce."""
    outcomes: Mapping[str, int] = field(default_factory=dict)
    """Jobs signalled by this process, by result."""
    answers: Mapping[Given, int] = field(default_factory=dict)
    """Jobs by their acknowledgement, since the ledger began."""
    signal_seconds: Histogram = NOTICE_TO_SIGNAL
    """Seconds from the arrival of a notice to the signal of a job."""
    error: str = ""
    """Why some jobs are not known, or cannot be reached; empty otherwise."""


def evacuations(snapshot: Snapshot) -> Evacuations:
    """Return this feature's part of the snapshot, which is empty with simulated GPUs."""
    shown: Evacuations = snapshot.features.get(NAME, _NONE)
    return shown


_NONE = Evacuations()
