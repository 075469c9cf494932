"""With drain_by = "hook" a drain waits until slurmd's health check has asked for it, and passes no other brake by that."""

from __future__ import annotations

from typing import Any

import pytest

from gpuwarden.actuators.base import ActuatorUnavailable
from gpuwarden.actuators.hook_gate import OPEN_FOR, HookGate
from gpuwarden.policy.model import Act, FleetCount, Intent, NodeState, Owner, Why
from gpuwarden_collectors.base import host_clock
from gpuwarden_collectors.facts import Stamp


class Scheduler:
    """One in memory, of eight nodes."""

    name = "slurm"
    pool: int | None = None

    def __init__(self) -> None:
        self.writes: list[Intent] = []

    async def read(self) -> NodeState:
        owner = Owner.OURS if self.writes else Owner.NONE
        return NodeState(at=host_clock(), owner=owner, pool=8)

    async def fleet_count(self) -> FleetCount:
        return FleetCount(node="me", pool=8, held=(), now=100.0)

    async def apply(self, intent: Intent, state: NodeState) -> None:
        self.writes.append(intent)

    async def close(self) -> None:
        return


async def test_a_gate_lets_through_only_for_a_while_after_the_hook_was_here() -> None:
    now = 1000.0
    gate = HookGate(Scheduler(), lambda: Stamp(now, now))
    with pytest.raises(ActuatorUnavailable, match="HealthCheckProgram"):
        await gate.fleet_count()
    gate.hook_ran()
    assert (await gate.fleet_count()).pool == 8
    now += OPEN_FOR + 1
    with pytest.raises(ActuatorUnavailable):
        await gate.fleet_count()
    assert (await gate.read()).pool == 8, "a read is free"


async def test_a_gate_that_let_a_drain_through_lets_the_breaker_count_again() -> None:
    """The hook was here almost too long ago when the node was drained; others may have been drained with it."""
    now = 1000.0
    gate = HookGate(Scheduler(), lambda: Stamp(now, now))
    gate.hook_ran()
    now += OPEN_FOR - 1
    about: dict[str, Any] = {
        "actuator": "slurm",
        "why": Why.FAILURE,
        "reason": "gpuwarden: failure gpu=3 gpu_missing",
        "key": "k",
        "at": host_clock(),
    }
    await gate.apply(Intent(act=Act.EXCLUDE, **about), await gate.read())
    now += 30
    assert (await gate.fleet_count()).pool == 8
    now += OPEN_FOR
    await gate.apply(Intent(act=Act.RESTORE, **about), await gate.read())
    with pytest.raises(ActuatorUnavailable):
        await gate.fleet_count()
