"""However many nodes fail at once, and however their writes collide: no more are excluded than allowed, and some are."""

from __future__ import annotations

import heapq
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.actuators.reconciler import Limits
from gpuwarden.policy import breaker
from gpuwarden.policy.model import Budget, FleetCount, Held

LIMITS = Limits()
ALWAYS = Budget(percent=100, count=100_000)
moments = st.floats(0.0, 2.0)
runs = st.lists(st.tuples(moments, moments, moments), min_size=1, max_size=60)


def race(delays: list[tuple[float, float, float]], budget: Budget, pool: int, pause: float) -> set[str]:
    """Return the nodes that are out at the end, when each counts, writes, counts again after `pause` and writes again,
    in any order.

    The delays of a node: until it counts, until its write takes effect, until it counts again beyond the pause.
    """
    since: dict[str, float] = {}
    queue: list[tuple[float, int, str, str]] = [(d[0], n, f"n{n:03}", "count") for n, d in enumerate(delays)]
    heapq.heapify(queue)
    while queue:
        now, number, node, act = heapq.heappop(queue)
        held = tuple(Held(at, name) for name, at in since.items())
        over = breaker.refusal(budget, FleetCount(node=node, pool=pool, held=held, now=now))
        _, write, late = delays[number]
        if act == "count" and not over:
            heapq.heappush(queue, (now + write, number, node, "write"))
        elif act == "write":
            since[node] = float(int(now))
            heapq.heappush(queue, (now + pause + late, number, node, "recount"))
        elif act == "recount" and over:
            heapq.heappush(queue, (now + write, number, node, "step back"))
        elif act == "step back":
            del since[node]
    return set(since)


@settings(deadline=None, max_examples=200)
@given(delays=runs, percent=st.integers(1, 100), count=st.integers(1, 30))
def test_after_the_second_count_no_more_are_out_than_may_be(
    delays: list[tuple[float, float, float]], percent: int, count: int
) -> None:
    budget = Budget(percent=percent, count=count)
    out = race(delays, budget, pool=len(delays), pause=breaker.RECOUNT_LEAST)
    assert 1 <= len(out) <= min(breaker.share(budget, len(delays)), count)


def test_without_the_second_count_all_of_them_would_be_out() -> None:
    together = [(0.0, 0.5, 1_000.0)] * 100
    assert len(race(together, Budget(percent=10), pool=100, pause=breaker.RECOUNT_LEAST)) == 10
    never = replace(Budget(percent=10), percent=100, count=100)
    assert len(race(together, never, pool=100, pause=breaker.RECOUNT_LEAST)) == 100


@pytest.mark.parametrize(("pool", "allowed"), [(1, 1), (3, 1), (4, 1), (8, 2), (16, 4), (100, 25), (8_000, 2_000)])
def test_the_share_of_small_and_large_pools(pool: int, allowed: int) -> None:
    assert breaker.share(Budget(), pool) == allowed
    held = tuple(Held(0.0, f"n{number}") for number in range(allowed))
    old = FleetCount(node="new", pool=pool, held=held, now=1e6)
    assert "nodes are excluded for failures (limit" in breaker.refusal(Budget(), old)
    assert breaker.refusal(Budget(), replace(old, held=held[1:])) == ""


def test_of_one_nvlink_domain_only_so_many_may_be_out_and_clique_0_is_one() -> None:
    held = tuple(Held(float(number), f"n{number}", "8f3c6a1e.0") for number in range(4))
    count = FleetCount(node="new", pool=1_000, held=held, now=1e6)
    assert breaker.refusal(Budget(), count, "8f3c6a1e.0") == (
        "4 nodes of NVLink domain 8f3c6a1e.0 are excluded for failures (limit 4)"
    )
    assert breaker.refusal(Budget(domain=5), count, "8f3c6a1e.0") == ""
    assert breaker.refusal(Budget(), count, "8f3c6a1e.1") == ""
    assert breaker.refusal(Budget(), count) == ""
    assert breaker.refusal(Budget(), replace(count, node="n3"), "8f3c6a1e.0") == ""


def test_nodes_whose_domain_is_not_known_count_for_the_pool_only() -> None:
    held = tuple(Held(float(number), f"n{number}") for number in range(8))
    assert breaker.refusal(Budget(), FleetCount(node="new", pool=1_000, held=held, now=1e6), "8f3c6a1e.0") == ""


def test_what_was_excluded_before_the_window_counts_for_the_share_only() -> None:
    held = tuple(Held(1_000.0 * number, f"n{number}") for number in range(20))
    fleet_count = FleetCount(node="new", pool=8_000, held=held, now=19_500.0)
    assert breaker.refusal(Budget(count=4), replace(fleet_count, now=19_500.0)) != ""
    assert breaker.refusal(Budget(count=4), replace(fleet_count, now=30_000.0)) == ""


def test_a_node_that_was_first_stays_out_whatever_node_came_later() -> None:
    held = tuple(Held(float(number), f"n{number}") for number in range(50))
    fleet_count = FleetCount(node="n0", pool=50, held=held, now=60.0)
    assert breaker.refusal(Budget(), fleet_count) == ""
    assert breaker.refusal(Budget(), replace(fleet_count, node="n49")) != ""


@pytest.mark.parametrize(
    ("pool", "seconds"), [(1, 0.0), (9, 0.0), (10, 0.2), (1_000, 20.0), (8_000, 120.0), (None, 2.0)]
)
def test_first_writes_are_spread_by_the_size_of_the_pool(pool: int | None, seconds: float) -> None:
    assert breaker.spread(pool) == pytest.approx(seconds)


@pytest.mark.parametrize("pool", [1, 100, 1_000, 8_000])
def test_a_controller_that_returns_is_spared_more_requests_than_it_bears(pool: int) -> None:
    attempts = pool / (LIMITS.away / 2 + breaker.spread_of_return(pool))  # a second: each within its time, uniformly
    assert attempts * breaker.REQUESTS_OF_AN_ATTEMPT <= breaker.REQUESTS_BORNE


def test_the_return_is_noticed_within_five_seconds_and_the_spread() -> None:
    assert [LIMITS.away + breaker.spread_of_return(pool) for pool in (1, 100, 1_000, 8_000)] == pytest.approx(
        [5.015, 6.5, 20.0, 125.0]
    )
