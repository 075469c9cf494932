"""One bad driver on every node of a fleet within five minutes: every node says so, and the breaker keeps most of them in.

Each node lives its own story and is judged by itself; what policy wants of the scheduler then meets the others' wishes
at the breaker's two counts, as the actuators make them: before the write, and once more after it.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from evaluate.faults import spread as struck_everywhere
from evaluate.node import Node
from gpuwarden.health.model import EventKind
from gpuwarden.policy.breaker import refusal, share, spread
from gpuwarden.policy.model import Budget, FleetCount, Held, Settings
from gpuwarden.replay.replay import Replay
from gpuwarden.replay.what_if import Rehearsal
from gpuwarden.trace.records import Record

NODES, WITHIN, RECOUNT_AFTER = 100, 300.0, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetResult:
    """`detected`: nodes that policy wanted excluded. `most`: nodes excluded at once at most; `left`: nodes excluded at the end."""

    nodes: int
    detected: int
    most: int
    left: int
    allowed: int


def measure_fleet(seed: int, nodes: int = NODES) -> FleetResult:
    dice, budget = Random(f"fleet/{seed}"), Budget()
    wants = [
        at for n in range(nodes) if (at := _wanted(Random(f"fleet/{seed}/{n}"), dice.uniform(0.0, WITHIN))) is not None
    ]
    most, left = counted(wants, nodes, budget, dice)
    return FleetResult(
        nodes=nodes, detected=len(wants), most=most, left=left, allowed=min(share(budget, nodes), budget.count)
    )


def _wanted(dice: Random, struck: float) -> float | None:
    """Seconds into the story at which policy wants this node out."""
    replay, rehearsal = Replay(), Rehearsal(Settings(), Budget())
    wanted: list[float] = []

    def take(record: Record) -> None:
        decisions = rehearsal.take(record, replay.take(record), replay.engine)
        wanted.extend(node.clock for events in decisions for event in events if event.kind == EventKind.INTENDED)

    node = Node(take, dice, gpus=4, beside=False)
    node.start_daemon(remembers=False)
    node.run(struck)
    node.go(struck_everywhere(node, 0))
    node.run(30.0)
    return min(wanted, default=None)


def counted(wants: Sequence[float], nodes: int, budget: Budget, dice: Random) -> tuple[int, int]:
    """Return how many nodes are excluded at most and at the end if policy wants them out at these times; the scheduler keeps whole seconds."""
    held: dict[str, Held] = {}
    most = 0
    due = [(at + dice.uniform(0.0, spread(nodes)), f"node{n:05d}", False) for n, at in enumerate(wants)]
    heapq.heapify(due)
    while due:
        at, node, again = heapq.heappop(due)
        refused = refusal(budget, FleetCount(node=node, pool=nodes, held=tuple(held.values()), now=at))
        if refused:
            held.pop(node, None)
        elif not again:
            held[node] = Held(float(int(at)), node)
            heapq.heappush(due, (at + RECOUNT_AFTER, node, True))
        most = max(most, len(held))
    return most, len(held)
