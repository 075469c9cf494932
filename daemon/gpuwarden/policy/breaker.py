"""The breaker: a bad driver, or a bad rule of ours, must not take the fleet down.

A node counts the nodes of its pool that gpuwarden has excluded for failures, before it excludes itself and once more
after that. To read, to decide and to write are three things, and a hundred nodes may do them at once, so that the second
count decides: in the order (when it was written, name of the node), which every node sees alike, a node beyond the budget
rolls its exclusion back. Schedulers keep whole seconds, so that the second count must come at least a second after the
write: what is written later than that has a later second and stands behind. Terminations are neither counted nor limited.

Three bounds, all of which must hold. At any time at most `percent` of the pool, and never less than one node. Within
`window` at most `count` nodes. Of one NVLink domain at any time at most `domain` nodes: what all of a rack share, as its
switch trays, must not take the rack out. With the defaults (25 %, 10 in an hour): 1 of 4, 2 of 8, 25 of 100, 2,000 of 8,000, and of
those 10 in the first hour. Fleets see 5 to 7 failures per 1,000 nodes and day: 8,000 nodes have 2 in an hour, and more
than 10 by chance (Poisson, 2.2 an hour) about once in five years.
"""

from __future__ import annotations

from gpuwarden.policy.model import Budget, FleetCount, Held, earlier

SPREAD_PER_NODE = 0.020
"""Seconds for each node of the pool over which first writes are spread, when all fail at once: 50 a second at most."""
SPREAD_FROM = 10
"""Nodes: smaller pools need no spreading."""
SPREAD_MOST = 120.0
SPREAD_OF_COUNTS = 5.0
"""Seconds, at most, over which first counts are spread where the writes are not: of 1,000 nodes that fail in one second, at 0.2 s a call, 70 are
out for some seconds (`benchmarks/bench_storm.py`)."""
POOL_UNKNOWN = 100
"""Nodes that a pool of unknown size is taken to have."""
LARGEST_POOL = 8_000
"""Nodes of a pool of unknown size that is not to be overrun."""
REQUESTS_BORNE = 200.0
"""Requests a second, at most, that a controller gets once it answers again."""
REQUESTS_OF_AN_ATTEMPT = 3.0
"""Requests of each node once a controller answers again: it counts, and reads. Only a few nodes get past the budget then,
whatever the size of the pool."""
RECOUNT_LEAST = 1.0
"""Seconds between a write and the second count, at least: the resolution of a scheduler's clock."""


def spread(pool: int | None) -> float:
    """Seconds over which the first write is to be delayed by chance, uniformly."""
    nodes = POOL_UNKNOWN if pool is None else pool
    return 0.0 if nodes < SPREAD_FROM else min(SPREAD_MOST, nodes * SPREAD_PER_NODE)


def spread_of_counts(pool: int | None) -> float:
    """Seconds over which the first count is to be delayed where only a count or a refusal shows that others write, too."""
    return min(SPREAD_OF_COUNTS, spread(pool))


def crowded(fleet_count: FleetCount) -> bool:
    """True if others have been excluded for failures within the longest spread: then first writes are spread."""
    others = (held for held in fleet_count.held if held.node != fleet_count.node)
    return any(_within(held, SPREAD_MOST, fleet_count.now) for held in others)


def spread_of_return(pool: int) -> float:
    """Seconds over which attempts are spread while the controller is away, if all of the pool have one to make."""
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
