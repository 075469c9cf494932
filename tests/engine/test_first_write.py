"""How long a first write waits for those of others: where the scheduler sheds load, only if others write, too."""

from __future__ import annotations

import time

import pytest

from gpuwarden.actuators.base import (
    ActuatorDenied,
    ActuatorError,
    ActuatorOverloaded,
    ActuatorRefused,
    ActuatorUnavailable,
)
from gpuwarden.actuators.reconciler import Limits, Reconciler
from gpuwarden.policy.breaker import SPREAD_MOST, SPREAD_OF_COUNTS, spread
from gpuwarden.policy.model import Act, Intent, Result, Why
from gpuwarden_collectors.base import host_clock
from support.chance import Earliest
from support.schedulers import Client, Cluster, Node

POOL = 3_000
SHORT, LONG = (0.0, SPREAD_OF_COUNTS), (0.0, spread(POOL))
FAILED = Intent(
    act=Act.EXCLUDE, actuator="fake", why=Why.FAILURE, reason="gpuwarden: failure gpu=3 xid=79", key="k", at=host_clock()
)  # fmt: skip


async def always() -> bool:
    return True


class Pool:
    """The first node of a pool, whose scheduler sheds load, and the waits that its reconciler drew."""

    def __init__(self, *, sheds_load: bool = True) -> None:
        self.chance = Earliest()
        self.cluster = Cluster(time.time, {f"n{number}": Node() for number in range(POOL)})
        self.client = Client(self.cluster, "n0", host_clock)
        self.client.sheds_load = sheds_load
        self.box = Reconciler(
            self.client, committed=always, wanted=lambda _: True, on_read=lambda: None, limits=Limits(recount_after=0.0),
            clock=host_clock, chance=self.chance,
        )  # fmt: skip

    async def attempt(self) -> tuple[Result, list[tuple[float, float]]]:
        """The result, and the waits before the write and for it; not those between two attempts."""
        self.chance.asked.clear()
        outcome, _ = await self.box.attempt(FAILED)
        return outcome.result, [asked for asked in self.chance.asked if asked in (SHORT, LONG)]


async def test_a_lone_failure_in_a_big_pool_is_written_within_seconds() -> None:
    assert LONG == (0.0, 60.0)
    assert await Pool().attempt() == (Result.DONE, [SHORT])
    assert await Pool(sheds_load=False).attempt() == (Result.DONE, [LONG])


@pytest.mark.parametrize(("ago", "waits"), [(5.0, [SHORT, LONG]), (SPREAD_MOST + 5.0, [SHORT])])
async def test_where_others_went_out_just_now_it_waits_and_counts_again(ago: float, waits: list[object]) -> None:
    pool = Pool()
    pool.cluster.nodes["n7"] = Node(reason="gpuwarden: failure gpu=0 xid=79", since=time.time() - ago)
    assert await pool.attempt() == (Result.DONE, waits)
    assert pool.client.calls.count("fleet_count") == len(waits) + 1


async def test_where_the_breaker_is_open_already_it_does_not_wait_for_others() -> None:
    pool = Pool()
    for number in range(1, 30):
        pool.cluster.nodes[f"n{number}"] = Node(reason="gpuwarden: failure gpu=0 xid=79", since=time.time())
    assert await pool.attempt() == (Result.RETRY, [SHORT])
    assert pool.box.held_back


async def test_what_a_rule_of_the_site_refuses_is_tried_again_every_few_minutes() -> None:
    """Whoever corrects the rule gives no order to each node."""
    pool = Pool()
    pauses: dict[type[ActuatorError], float] = {}
    for error in (ActuatorDenied("a policy refuses it"), ActuatorRefused("no permission")):
        pool.client.away = error
        for _ in range(10):
            outcome, pauses[type(error)] = await pool.box.attempt(FAILED)
            assert outcome.result is Result.REFUSED
    assert pauses == {ActuatorDenied: 300.0, ActuatorRefused: 3_600.0}


@pytest.mark.parametrize("of", ["fleet_count", "read", "apply"])
@pytest.mark.parametrize(("error", "waits"), [(ActuatorOverloaded("429"), [LONG]), (ActuatorUnavailable("500"), [])])
async def test_after_a_refusal_of_too_many_requests_the_next_attempt_is_spread(
    of: str, error: ActuatorError, waits: list[object]
) -> None:
    pool = Pool()
    await pool.box.read()

    def refuses(call: str) -> None:
        if call == of:
            raise error

    pool.client.before = refuses
    assert (await pool.attempt())[0] is Result.RETRY
    pool.client.before = lambda _: None
    assert await pool.attempt() == (Result.DONE, waits)
