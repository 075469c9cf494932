"""The breaker: limits exclusions for failures, so that a bad driver or a bad rule of ours cannot take the fleet down.

A node counts the nodes of its pool that gpuwarden has excluded for failures, before it excludes itself and once more
after that. Reading, deciding and writing are not atomic, and a hundred nodes may do them at once, so the second count
decides: nodes are ordered by time of exclusion, then name, which every node reads alike, and a node beyond the budget
rolls its exclusion back. Schedulers store whole seconds, so the second count must come at least a second after the
write: later writes then have a later second and rank behind. Terminations are neither counted nor limited.

There are three limits: at any time at most `percent` of the pool, but at least one node; within `window` at most
`count` nodes; at any time at most `domain` nodes of one NVLink domain, since a fault in what a rack shares, such as its
switch trays, must not exclude the whole rack. With the defaults (25 %, 10 in an hour): 1 of 4, 2 of 8, 25 of 100, 2,000
of 8,000, and of those 10 in the first hour. Fleets have 5 to 7 failures per 1,000 nodes and day: 8,000 nodes have 2 in
an hour, and more than 10 by chance (Poisson, 2.2 an hour) about once in five years.
"""

from __future__ import annotations

from gpuwarden.policy.model import Budget, FleetCount, Held, earlier

SPREAD_PER_NODE = 0.020
"""Seconds per node of the pool over which first writes are spread when all fail at once: at most 50 writes a second."""
SPREAD_FROM = 10
"""Nodes of a pool from which writes are spread."""
SPREAD_MOST = 120.0
SPREAD_OF_COUNTS = 5.0
"""Most seconds over which first counts are spread where writes are not: of 1,000 nodes that fail within one second, at
0.2 s a call, 70 are excluded for some seconds (`benchmarks/bench_storm.py`)."""
POOL_UNKNOWN = 100
"""Assumed number of nodes of a pool of unknown size."""
LARGEST_POOL = 8_000
"""Assumed number of nodes of a pool of unknown size when the load on a controller that answers again is limited."""
REQUESTS_BORNE = 200.0
"""Most requests a second that a controller gets once it answers again."""
REQUESTS_OF_AN_ATTEMPT = 3.0
"""Requests that each node sends once a controller answers again: counts and reads. The budget stops all but a few nodes
then, in a pool of any size."""
RECOUNT_LEAST = 1.0
"""Least seconds between a write and the second count: the resolution of a scheduler's clock."""


def spread(pool: int | None) -> float:
    """Seconds within which the first write is delayed by a uniformly random time."""
    nodes = POOL_UNKNOWN if pool is None else pool
    return 0.0 if nodes < SPREAD_FROM else min(SPREAD_MOST, nodes * SPREAD_PER_NODE)


def spread_of_counts(pool: int | None) -> float:
    """Seconds within which the first count is delayed at random if other nodes' writes show only in a count or a
    refusal.
    """
    return min(SPREAD_OF_COUNTS, spread(pool))


def crowded(fleet_count: FleetCount) -> bool:
    """True if other nodes were excluded for failures within the longest spread: first writes are then spread."""
    others = (held for held in fleet_count.held if held.node != fleet_count.node)
    return any(_within(held, SPREAD_MOST, fleet_count.now) for held in others)


def spread_of_return(pool: int) -> float:
    """Seconds over which attempts are spread while the controller is unreachable, if every node of the pool has one
    due.
    """
    return pool * REQUESTS_OF_AN_ATTEMPT / REQUESTS_BORNE


def share(budget: Budget, pool: int) -> int:
    """Number of nodes of a pool that may be excluded for failures at any time; at least one."""
    return max(1, pool * budget.percent // 100)


def refusal(budget: Budget, fleet_count: FleetCount, domain: str = "") -> str:
    """Why this node of that NVLink domain may not be excluded, or stay excluded, for a failure; "" if it may."""
    before = earlier(fleet_count.held, fleet_count.node)
    recent = [held for held in before if _within(held, budget.window, fleet_count.now)]
    if len(before) >= share(budget, fleet_count.pool):
        most = share(budget, fleet_count.pool)
        return _with_shared(
            f"{len(before)} of {fleet_count.pool} nodes are excluded for failures (limit {most})", fleet_count
        )
    if len(recent) >= budget.count:
        return _with_shared(
            f"{len(recent)} nodes were excluded for failures within {budget.window:.0f} s (limit {budget.count})",
            fleet_count,
        )
    alike = sum(held.domain == domain for held in before) if domain else 0
    if alike >= budget.domain:
        return _with_shared(
            f"{alike} nodes of NVLink domain {domain} are excluded for failures (limit {budget.domain})", fleet_count
        )
    return ""


def _with_shared(text: str, fleet_count: FleetCount) -> str:
    return f"{text}; {fleet_count.shared}" if fleet_count.shared else text


def _within(held: Held, window: float, now: float) -> bool:
    return held.since > now - window
