"""Is a repaired node drained for its old fault, whose drain could not be written while it lasted?

    benchmarks/repair_pending.py --nodes 10

One round for each of: controller away or breaker open, repaired beside a running daemon or with a restart. Every node fails, and each is
repaired at another moment of a pass of 5 s; then the drain could be written. With a restart, half of the daemons are killed and start
again before the repair, and the other half's machines boot. For root, on a machine that can be discarded.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1] / "tests"))

from support.daemons import RunningDaemon
from support.pending_drains import Obstacle, SlowHost, drains, holds_back, log_size, obstacle
from support.slurm import Slurm, running

WITHIN = 5.0
"""Seconds before the end of the obstacle within which the nodes are repaired: one pass."""
STEADY_PASSES = 6
"""Passes after the obstacle, in which a drain could still be written."""


@dataclass
class Result:
    nodes: int = 0
    drained: list[str] = field(default_factory=list)


def a_round(slurm: Slurm, folder: Path, kind: Obstacle, *, restarts: bool, result: Result) -> None:
    *names, other = slurm.names
    hosts = []
    for name in names:
        (folder / name).mkdir()
        host = SlowHost(folder / name, slurm, name)
        host.configure_slurm(percent=100 // len(slurm.names))
        hosts.append(host)
    with ExitStack() as stack:
        stacks = [stack.enter_context(ExitStack()) for _ in hosts]
        daemons = [own.enter_context(host.acting()) for own, host in zip(stacks, hosts, strict=True)]
        for daemon in daemons:
            daemon.wait_status("healthy")
        since = log_size(slurm)
        with obstacle(slurm, kind, other):
            for host in hosts:
                host.breaks()
            for daemon in daemons:
                daemon.wait(partial(holds_back, daemon), "the drain to be wanted")
            if restarts:
                daemons = [again(own, host, n) for n, (own, host) in enumerate(zip(stacks, hosts, strict=True))]
            repaired(hosts, restarts=restarts)
            for daemon in daemons:  # a busy machine hears of a repair late, and until then the fault is active
                daemon.wait_status("healthy")
        for daemon in daemons:
            daemon.wait_passes(STEADY_PASSES)
        result.nodes += len(hosts)
        label = f"{kind}, restarts: {restarts}"
        result.drained += [
            f"{label}: {host.node}: {found}" for host in hosts if (found := drains(slurm, host.node, since))
        ]


def again(own: ExitStack, host: SlowHost, number: int) -> RunningDaemon:
    own.close()  # kill -9
    if number % 2:
        host.boots_again()
    return own.enter_context(host.acting())


def repaired(hosts: Sequence[SlowHost], *, restarts: bool) -> None:
    chance = random.Random(0)
    began = time.monotonic()
    moments = sorted((chance.uniform(0.0, WITHIN), number) for number in range(len(hosts)))
    for moment, number in moments:
        time.sleep(max(0.0, began + moment - time.monotonic()))
        if not (restarts and number % 2):
            hosts[number].is_mended()


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
    print(
        f"repaired nodes drained for their old fault: {len(result.drained)} of {result.nodes}",
        *result.drained,
        sep="\n",
    )
    return 1 if result.drained else 0


if __name__ == "__main__":
    sys.exit(main())
