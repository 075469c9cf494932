"""A reconciler that acts on a real Slurm, as the daemon has one for it, without the daemon."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

from gpuwarden.actuators.reconciler import Limits, Reconciler
from gpuwarden.features.slurm.node_actuator import RETURNED, SlurmActuator
from gpuwarden.policy.model import Act, Intent, Outcome, Why
from gpuwarden_collectors.base import host_clock
from gpuwarden_collectors.slurm.client import SlurmClient
from gpuwarden_collectors.slurm.options import SlurmOptions
from support.slurm import Slurm

FAILURE = "gpuwarden: failure gpu=3 xid=79"
_NUMBERS = itertools.count()


class AtOnce(random.Random):
    """Chance that never delays: as if all failed in the same moment and drew the same."""

    def uniform(self, a: float, b: float) -> float:
        return a


def an_actuator(slurm: Slurm, node: str = "n1", *, describe: Callable[[], str] = str, **options: Any) -> SlurmActuator:
    chosen: dict[str, Any] = {"enabled": True, "node": node, "conf": slurm.conf, "timeout": 60.0} | options
    made = SlurmOptions(**chosen)
    client = SlurmClient(conf=made.conf, folder=made.folder, timeout=made.timeout, node=made.node, hostname="localhost")
    return SlurmActuator(made, client, clock=host_clock, detail=describe)


def a_reconciler(actuator: SlurmActuator, *, chance: random.Random | None = None, **limits: Any) -> Reconciler:
    async def committed() -> bool:
        return True

    chosen: dict[str, Any] = {"recount_after": 0.0} | limits
    return Reconciler(
        actuator, committed=committed, wanted=lambda _: True, on_read=lambda: None, limits=Limits(**chosen),
        clock=host_clock, chance=chance or AtOnce(),
    )  # fmt: skip


def exclude(why: Why = Why.FAILURE, reason: str = FAILURE, key: str = "") -> Intent:
    return Intent(
        act=Act.EXCLUDE, actuator="slurm", why=why, reason=reason, key=key or f"e{next(_NUMBERS)}", at=host_clock()
    )


def restore(why: Why = Why.FAILURE, reason: str = FAILURE, since: float = 0.0) -> Intent:
    return Intent(
        act=Act.RESTORE,
        actuator="slurm",
        why=why,
        reason=reason,
        since=since,
        key=f"r{next(_NUMBERS)}",
        at=host_clock(),
    )


async def attempt(slurm: Slurm, intent: Intent, node: str = "n1", **options: Any) -> Outcome:
    """Return the outcome of one attempt by a reconciler without a past."""
    actuator = an_actuator(slurm, node, **options)
    try:
        return (await a_reconciler(actuator).attempt(intent))[0]
    finally:
        await actuator.close()


def reasons_written(slurm: Slurm, node: str = "n1", *, since: int = 0) -> list[str]:
    """Return the reasons that the controller noted, in order: every write of a drain has one. `since`: length of the log before."""
    mark = f"update_node: node {node} reason set to: "
    written = [line.partition(mark)[2] for line in slurm.log()[since:].splitlines() if mark in line]
    return [reason for reason in written if reason != RETURNED]
