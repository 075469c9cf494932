"""What a thousand nodes ask of a controller when all of them fail in the same second.

The real policy, reconciler and breaker of each node, with the scheduler in memory and time made up: an hour passes in seconds.
`away`: the controller answers nothing for the first ten minutes.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from common import table
from gpuwarden.actuators.base import ActuatorUnavailable
from gpuwarden.base.log import configure
from gpuwarden.engine.enforcement import EnforcementOptions
from gpuwarden.policy.model import Settings
from support.enforcement_rig import Rig
from support.policy_story import xid
from support.schedulers import Cluster, Node
from support.snapshots import BOOTED

NODES = 1_000
HOUR = 3_600
AWAY = 600.0
STEP = 60.0
"""Seconds between the steps of a node: what it sees does not change."""


class MadeUpTime(asyncio.SelectorEventLoop):
    """Time passes only when there is nothing else to do, and then at once."""

    def __init__(self) -> None:
        super().__init__()
        self._passed = 0.0

    def time(self) -> float:
        return self._passed

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self._passed = max(self._passed, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


async def storm(away: float) -> tuple[Counter[int], Counter[str], int]:
    """Requests by the second in which they came, by kind, and how many nodes are out after an hour."""
    loop = asyncio.get_running_loop()
    cluster = Cluster(lambda: BOOTED + loop.time(), {f"n{n:04}": Node() for n in range(NODES)})
    seconds: Counter[int] = Counter()
    kinds: Counter[str] = Counter()
    rigs = [Rig(cluster, name, options=EnforcementOptions(settings=Settings(enforce=True))) for name in cluster.nodes]

    def asked(call: str) -> None:
        if loop.time() < STEP:
            return
        seconds[int(loop.time() - STEP)] += 1
        kinds[call] += 1
        if loop.time() - STEP < away:
            raise ActuatorUnavailable("no answer")

    for rig in rigs:
        rig.client.before = asked
        rig.enforcement.run()
        rig.passes()
    await asyncio.sleep(STEP)  # they know each other
    for rig in rigs:
        rig.passes(xid())
    for _ in range(int(HOUR / STEP)):
        await asyncio.sleep(STEP)
        for rig in rigs:
            rig.step()
    for rig in rigs:
        await rig.kill()
    return seconds, kinds, sum(bool(node.reason) for node in cluster.nodes.values())


def measure(away: float) -> list[str]:
    loop = MadeUpTime()
    try:
        seconds, kinds, out = loop.run_until_complete(storm(away))
    finally:
        loop.close()
    late = [seconds[second] for second in range(HOUR - 1_200, HOUR)]
    back = [count for second, count in seconds.items() if second >= away]
    return [
        f"{away:.0f} s", str(max(seconds.values())), str(max(back)), f"{sum(late) / len(late):.1f}",
        f"{sum(seconds.values()):,}", ", ".join(f"{kind} {count:,}" for kind, count in sorted(kinds.items())), str(out),
    ]  # fmt: skip


def main() -> None:
    configure("error")
    rows = [measure(0.0), measure(AWAY)]
    heads = [
        "controller away",
        "most in a second",
        "after its return",
        "a second, last 20 min",
        "in an hour",
        "which",
        "out",
    ]
    table(f"{NODES} nodes fail in the same second; the budget is 10 in an hour", heads, rows)


if __name__ == "__main__":
    main()
