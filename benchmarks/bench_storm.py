"""The requests of a thousand nodes to a scheduler when all of them fail in the same second.

The real policy, reconciler and breaker of each node, with the scheduler in memory and simulated time: an hour takes seconds.
`away`: the scheduler answers nothing for the first ten minutes. An API server sheds load, so there no node waits for others before the first count.
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
LATENCY = 0.2
"""Seconds of each call, as to a busy API server: between a count and the write of it are two."""
STEP = 60.0
"""Seconds between the steps of a node: what it sees does not change."""


class MadeUpTime(asyncio.SelectorEventLoop):
    """An event loop whose time advances only when it is idle, and then at once."""

    def __init__(self) -> None:
        super().__init__()
        self._passed = 0.0

    def time(self) -> float:
        return self._passed

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self._passed = max(self._passed, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


async def storm(away: float, *, sheds_load: bool) -> tuple[Counter[int], Counter[str], int, int]:
    """Return the requests by second and by kind, and the number of nodes that are out, at most and after an hour."""
    loop = asyncio.get_running_loop()
    cluster = Cluster(lambda: BOOTED + loop.time(), {f"n{n:04}": Node() for n in range(NODES)})
    seconds: Counter[int] = Counter()
    kinds: Counter[str] = Counter()
    most = 0
    rigs = [Rig(cluster, name, options=EnforcementOptions(settings=Settings(enforce=True))) for name in cluster.nodes]

    def done(call: str) -> None:
        nonlocal most
        most = max(most, out(cluster)) if call == "apply" else most

    def asked(call: str) -> None:
        if loop.time() < STEP:
            return
        seconds[int(loop.time() - STEP)] += 1
        kinds[call] += 1
        if loop.time() - STEP < away:
            raise ActuatorUnavailable("no answer")

    for rig in rigs:
        rig.client.before, rig.client.after = asked, done
        rig.client.sheds_load, rig.client.latency = sheds_load, LATENCY
        rig.enforcement.run()
        rig.passes()
    await asyncio.sleep(STEP)  # they know each other
    await hour(rigs)
    return seconds, kinds, most, out(cluster)


async def hour(rigs: list[Rig]) -> None:
    """Let all of them fail, and repair nothing for an hour."""
    for rig in rigs:
        rig.passes(xid())
    for _ in range(int(HOUR / STEP)):
        await asyncio.sleep(STEP)
        for rig in rigs:
            rig.step()
    for rig in rigs:
        await rig.kill()


def out(cluster: Cluster) -> int:
    return sum(bool(node.reason) for node in cluster.nodes.values())


def measure(service: str, away: float, *, sheds_load: bool = False) -> list[str]:
    loop = MadeUpTime()
    try:
        seconds, kinds, most, left = loop.run_until_complete(storm(away, sheds_load=sheds_load))
    finally:
        loop.close()
    late = [seconds[second] for second in range(HOUR - 1_200, HOUR)]
    back = [count for second, count in seconds.items() if second >= away]
    return [
        service, f"{away:.0f} s", str(max(seconds.values())), str(max(back)), f"{sum(late) / len(late):.1f}",
        f"{sum(seconds.values()):,}", ", ".join(f"{kind} {count:,}" for kind, count in sorted(kinds.items())), str(most), str(left),
    ]  # fmt: skip


def main() -> None:
    configure("error")
    rows = [
        measure("Slurm", 0.0), measure("Slurm", AWAY), measure("API server", 0.0, sheds_load=True),
        measure("API server", AWAY, sheds_load=True),
    ]  # fmt: skip
    heads = [
        "scheduler",
        "away",
        "most in a second",
        "after its return",
        "a second, last 20 min",
        "in an hour",
        "which",
        "out at most",
        "out",
    ]
    table(f"{NODES} nodes fail in the same second; the budget is 10 in an hour", heads, rows)


if __name__ == "__main__":
    main()
