"""A failure whose drain cannot be written while it lasts: the controller is away, or the breaker is open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from support.daemons import RunningDaemon
from support.drain_kills import log_of, updates
from support.repairs import RepairedHost
from support.slurm import CONTROLLER, Slurm
from support.slurm_hosts import acting_of

PASS = "5s"
"""The default of `collectors.nvml.interval`: a finding of the kernel log ends between two passes."""
OTHER = "gpuwarden: failure gpu=0 xid=95"
"""The exclusion of another node, which uses up the breaker's budget."""


class Obstacle(StrEnum):
    CONTROLLER = "the controller is away"
    BREAKER = "the breaker is open"


class SlowHost(RepairedHost):
    """Its GPUs are read as seldom as by default."""

    def configure(self, more: str = "", *, interval: str = PASS, **others: str) -> None:
        super().configure(more, interval=interval, **others)


@contextmanager
def obstacle(slurm: Slurm, kind: Obstacle, other: str) -> Iterator[None]:
    """Within the block no drain can be written; `other` is a node without a daemon."""
    if kind is Obstacle.CONTROLLER:
        slurm.stop(CONTROLLER)
    else:
        slurm.drain(other, OTHER)
    yield
    if kind is Obstacle.CONTROLLER:
        slurm.start(CONTROLLER)
    else:
        slurm.scontrol("update", f"NodeName={other}", "State=RESUME")


def holds_back(daemon: RunningDaemon) -> bool:
    """Return True if the drain is wanted, and not written."""
    return bool(acting_of(daemon)["wanted"])


def drains(slurm: Slurm, node: str, since: int) -> list[str]:
    """States in which no job starts that the controller gave the node in answer to a request since then."""
    return [u.value for u in updates(slurm, node, since) if u.what == "state" and "DRAIN" in u.value]


def log_size(slurm: Slurm) -> int:
    return log_of(slurm).stat().st_size
