"""Is a repaired node drained for its old fault, whose drain could not be written while it lasted?

    benchmarks/repair_pending.py --nodes 10

One round for each of: controller away or breaker open, repaired beside a running daemon or with a restart. Every node fails. Then the
obstacle ends, and each node is repaired at another moment from then on. So a drain may be written before the repair, which is right; or
after it, while the finding stands until the next pass of 5 s; or tried once the finding has fallen, which must write nothing. With a
restart, all daemons are killed: half of them start again before the repair, the other half's machines boot. For root, on a machine that
can be discarded.

Printed are the drains of each kind, and in how many rounds an attempt fell between a repair and the moment at which the drain was given
up: it was written then, or the daemon had an answer of the scheduler while it still had the drain to write. The status is polled, so
that this is the least number.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1] / "tests"))

from gpuwarden.actuators.reconciler import Limits
from support.daemons import RunningDaemon
from support.drain_kills import RACE, updates
from support.pending_drains import Obstacle, SlowHost, log_size, obstacle
from support.slurm import Slurm, running
from support.slurm_hosts import acting_of

WITHIN = {Obstacle.CONTROLLER: 2.5, Obstacle.BREAKER: 5.0}
"""Seconds from the end of the obstacle within which the nodes are repaired. Slurm's client goes on trying for 9 s, so that many drains are
written as soon as the controller answers.
"""
BEFORE = {Obstacle.CONTROLLER: 0.0, Obstacle.BREAKER: Limits().breaker_first - WITHIN[Obstacle.BREAKER]}
"""Seconds for which the obstacle stays once all drains wait: the breaker lets none be tried again before the repairs."""
STEADY_PASSES = 6
"""Passes after the repair, in which a drain could still be written."""
POLL = 0.1


@dataclass
class Result:
    """`drained`: after the finding had fallen. `before`: nodes that were drained before their repair; `between`: after it, while the finding
    stood. `tried`: of each round, the nodes with an attempt after the repair. `overtaken`: milliseconds from the fall of a finding to a
    drain whose last read came before it.
    """

    nodes: int = 0
    before: int = 0
    between: int = 0
    tried: list[int] = field(default_factory=list)
    overtaken: list[float] = field(default_factory=list)
    drained: list[str] = field(default_factory=list)


class Node:
    """One node of a round. `tried`: its daemon had an answer of the scheduler after the finding had fallen, and still had the drain to write."""

    def __init__(self, host: SlowHost, *, boots: bool) -> None:
        self.host = host
        self.boots = boots
        self.tried = False
        self.repaired = 0.0
        self.daemon: RunningDaemon
        self._own = ExitStack()

    def starts(self) -> None:
        self.daemon = self._own.enter_context(self.host.acting())

    def killed(self) -> None:
        self._own.close()

    def waits_back(self, kind: Obstacle) -> None:
        self.daemon.wait(partial(self._was_held_back, kind), "the drain to be tried in vain")

    def _was_held_back(self, kind: Obstacle) -> bool:
        shown = acting_of(self.daemon)
        if kind is Obstacle.CONTROLLER:
            return bool(shown["wanted"]) and not any(scheduler["reachable"] for scheduler in shown["schedulers"])
        return any(wanted["text"].startswith("the breaker is open") for wanted in shown["wanted"])

    def is_repaired(self) -> None:
        self.repaired = time.time()
        if self.boots:
            self.host.boots_again()
            self.starts()
        else:
            self.host.is_mended()

    def is_settled(self) -> bool:
        """Read what its daemon does, and return True once it has nothing more to write. A drain that stands is not written again."""
        shown = acting_of(self.daemon)
        waits = any(wanted["text"].startswith("waits until its cause") for wanted in shown["wanted"])
        free = all(scheduler["reachable"] and scheduler["excluded"] is None for scheduler in shown["schedulers"])
        self.tried = self.tried or (waits and free)
        return not shown["wanted"] and self.daemon.is_now("healthy")

    def fell(self) -> float:
        """Return when the finding fell: the pass after the repair ends it, and a machine that boots begins without it."""
        if self.boots:
            return self.repaired
        events = json.loads(self.daemon.get("/v1/events?since=0")[1])["events"]
        ends = (datetime.fromisoformat(event["at"]).timestamp() for event in events if event["kind"] == "cleared")
        return min(at for at in ends if at >= self.repaired - 1.0)


def a_round(slurm: Slurm, folder: Path, kind: Obstacle, *, restarts: bool, result: Result) -> None:
    *names, other = slurm.names
    percent = 100 if kind is Obstacle.CONTROLLER else 100 // len(slurm.names)
    nodes = [Node(made(folder, slurm, name, percent), boots=restarts and n % 2 == 1) for n, name in enumerate(names)]
    with ExitStack() as stack, ThreadPoolExecutor(1) as beside:
        for node in nodes:
            stack.callback(node.killed)
            node.starts()
        for node in nodes:
            node.daemon.wait_status("healthy")
        since = log_size(slurm)
        held = stack.enter_context(ExitStack())
        held.enter_context(obstacle(slurm, kind, other))
        for node in nodes:
            node.host.breaks()
        for node in nodes:
            node.waits_back(kind)
        for node in nodes if restarts else ():
            node.killed()
        for node in nodes if restarts else ():
            if not node.boots:
                node.starts()
                node.waits_back(kind)
        time.sleep(BEFORE[kind])
        ended = beside.submit(held.close)
        repair(nodes, WITHIN[kind])
        ended.result()
        for node in nodes:
            node.daemon.wait_passes(STEADY_PASSES)
        result.nodes += len(nodes)
        for node in nodes:
            counted(slurm, node, since, f"{kind}, restarts: {restarts}", result)
        result.tried.append(sum(node.tried for node in nodes))


def made(folder: Path, slurm: Slurm, name: str, percent: int) -> SlowHost:
    (folder / name).mkdir()
    host = SlowHost(folder / name, slurm, name)
    host.configure_slurm(percent=percent)
    return host


def repair(nodes: Sequence[Node], within: float) -> None:
    """Repair each at a moment of its own, and watch it from then on until it has nothing to write."""
    chance = random.Random(0)
    began = time.monotonic()
    due = sorted(((chance.uniform(0.0, within), node) for node in nodes), key=lambda each: each[0])
    watched: list[Node] = []
    while due or watched:
        if due and time.monotonic() - began >= due[0][0]:
            watched.append(due.pop(0)[1])
            watched[-1].is_repaired()
        watched = [node for node in watched if not node.is_settled()]
        time.sleep(POLL)


def counted(slurm: Slurm, node: Node, since: int, label: str, result: Result) -> None:
    fell = node.fell()
    drains = [update.at for update in updates(slurm, node.host.node, since) if update.what == "reason"]
    late = [(at - fell) * 1000.0 for at in drains if at > fell]
    between = any(node.repaired < at <= fell for at in drains)
    node.tried = node.tried or between or bool(late)
    result.between += between
    result.before += any(at <= node.repaired for at in drains)
    result.overtaken += [gap for gap in late if gap <= RACE]
    result.drained += [f"{label}: {node.host.node}: {gap:.0f} ms after" for gap in late if gap > RACE]


def report(result: Result) -> Iterator[str]:
    yield f"repaired nodes drained for their old fault: {len(result.drained)} of {result.nodes}"
    yield from result.drained
    yield f"drained before their repair: {result.before}"
    yield f"drained after it, while the finding stood: {result.between}"
    yield f"drained within {RACE:.0f} ms of the fall of their finding: {len(result.overtaken)}"
    rounds = sum(tried > 0 for tried in result.tried)
    yield f"rounds with an attempt after a repair: {rounds} of {len(result.tried)}, nodes {sum(result.tried)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=10)
    options = parser.parse_args()
    result = Result()
    for kind in Obstacle:
        for restarts in (False, True):
            with (
                tempfile.TemporaryDirectory(prefix="gw-slurm-", ignore_cleanup_errors=True) as rig,
                tempfile.TemporaryDirectory(prefix="gw-", ignore_cleanup_errors=True) as folder,
                running(Slurm(Path(rig), options.nodes + 1)) as slurm,
            ):
                a_round(slurm, Path(folder), kind, restarts=restarts, result=result)
            print(f"{kind}, restarts: {restarts}: {len(result.drained)} of {result.nodes} so far", flush=True)
    print(*report(result), sep="\n")
    return 1 if result.drained else 0


if __name__ == "__main__":
    sys.exit(main())
