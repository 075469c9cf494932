"""The published state of repairs: a part of the snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from gpuwarden.features.repair.memory import NAME
from gpuwarden.features.repair.model import Try
from gpuwarden.features.repair.preconditions import Obstacle
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden_collectors.dataclass import dataclass

STATES = ("clear", "waiting", "running", "person")
TRIES_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Repairs of this node."""

    allowed: tuple[str, ...] = ()
    """The steps that are allowed."""
    state: str = "clear"
    """`clear`: nothing is to be repaired; `waiting`: something forbids the next step, or the last one has yet to show what it
    cured; `running`; `person`: steps were tried, and none is left."""
    finding: str = ""
    """Id of the finding that this state is about."""
    step: str = ""
    """The step that runs, or comes next; empty if none is left."""
    text: str = ""
    """Why it waits, or why an operator must act."""
    forbidden_by: tuple[Obstacle, ...] = ()
    tries: tuple[Try, ...] = ()
    """The newest, the newest last."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Steps by outcome, as `reset_gpu_done`, since the ledger began."""


def of(snapshot: Snapshot) -> Shown:
    """Return the part of repairs in a snapshot."""
    shown: Shown = snapshot.features.get(NAME, Shown())
    return shown
