"""With drain_by = "hook" a drain waits until slurmd's health check has asked for it, and passes no other brake by that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwarden.actuators.base import ActuatorUnavailable
from gpuwarden.actuators.hook_gate import OPEN_FOR, HookGate
from gpuwarden.actuators.reconciler import Limits, Reconciler
from gpuwarden.policy.breaker import spread
from gpuwarden.policy.model import Act, FleetCount, Intent, NodeState, Owner, Result, Why
from gpuwarden_collectors.base import host_clock
from gpuwarden_collectors.facts import Stamp
from support.chance import Earliest

NODES = 500
FAILED = Intent(
    act=Act.EXCLUDE, actuator="slurm", why=Why.FAILURE, reason="gpuwarden: failure gpu=3 gpu_missing", key="k",
    at=host_clock(),
)  # fmt: skip


class Scheduler:
    """A scheduler in memory, which keeps what is written."""

    name = "slurm"
    sheds_load = False
    pool: int | None = None

    def __init__(self) -> None:
        self.writes: list[Intent] = []

    async def read(self) -> NodeState:
        if not self.writes:
            return NodeState(at=host_clock(), pool=NODES)
        return NodeState(at=host_clock(), owner=Owner.OURS, why=Why.FAILURE, reason=self.writes[-1].reason, pool=NODES)

    async def fleet_count(self) -> FleetCount:
        return FleetCount(node="me", pool=NODES, held=(), now=100.0)

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
    assert (await gate.fleet_count()).pool == NODES
    now += OPEN_FOR + 1
    with pytest.raises(ActuatorUnavailable):
        await gate.fleet_count()
    assert (await gate.read()).pool == NODES, "a read is free"


async def test_a_gate_that_let_a_drain_through_lets_the_breaker_count_again() -> None:
    """The hook was here almost too long ago when the node was drained; others may have been drained with it."""
    now = 1000.0
    gate = HookGate(Scheduler(), lambda: Stamp(now, now))
    gate.hook_ran()
    now += OPEN_FOR - 1
    await gate.apply(FAILED, await gate.read())
    now += 30
    assert (await gate.fleet_count()).pool == NODES
    now += OPEN_FOR
    await gate.apply(replace(FAILED, act=Act.RESTORE), await gate.read())
    with pytest.raises(ActuatorUnavailable):
        await gate.fleet_count()


async def test_a_drain_that_waits_for_the_hook_is_not_held_back_by_the_breaker_and_does_not_follow_it_in_step() -> None:
    """The hook ends its pause, and not that of the breaker; slurmd runs it on all nodes of the fleet at once."""

    async def committed() -> bool:
        return True

    gate, chance = HookGate(Scheduler(), host_clock), Earliest()
    box = Reconciler(
        gate, committed=committed, wanted=lambda _: True, on_read=lambda: None, limits=Limits(recount_after=0.0),
        clock=host_clock, chance=chance,
    )  # fmt: skip
    outcome, _ = await box.attempt(FAILED)
    assert "HealthCheckProgram" in outcome.text
    assert (outcome.result, box.held_back) == (Result.RETRY, "")
    assert box.node_state is not None, "the node is read meanwhile"
    assert box.node_state.reachable
    gate.hook_ran()
    chance.asked.clear()
    outcome, _ = await box.attempt(FAILED)
    assert (outcome.result, chance.asked[0]) == (Result.DONE, (0.0, spread(NODES)))
