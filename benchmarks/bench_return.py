"""A node that failed while Slurm's controller was away: seconds from the controller's return to the drain.

On a real slurmctld that is killed and started again, or stopped and continued, with a daemon on each of three nodes, in a pool of a
hundred of which the others are in the configuration only. It is away long enough for several attempts to fail.
"""

from __future__ import annotations

import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from apart import apart
from bench_slurm import cluster
from common import percentile, spread, table
from gpuwarden.actuators.reconciler import Limits
from gpuwarden.policy.breaker import spread_of_return
from support.daemons import RunningDaemon
from support.drain_kills import GPUS, log_of, updates
from support.slurm import CONTROLLER, Slurm, missing_parts
from support.slurm_hosts import SlurmHost, acting_of

NODES, PHANTOMS = 3, 97
ROUNDS = 4
AWAY = 75.0, 100.0
"""Seconds, by chance: four attempts, and in which part of the next the controller returns."""


def killed(slurm: Slurm) -> Callable[[], float]:
    """Kill the controller; the function returned starts it, and returns when it answered."""
    slurm.stop(CONTROLLER, how=signal.SIGKILL)

    def back() -> float:
        start = threading.Thread(target=slurm.start, args=(CONTROLLER,))  # until the nodes have registered, too
        start.start()
        while not slurm.answers():
            time.sleep(0.02)
        answers = time.time()
        start.join()
        return answers

    return back


def stopped(slurm: Slurm) -> Callable[[], float]:
    """Stop the controller without ending it, so that it hangs; the function returned lets it run again, and returns when it answered."""
    slurm.pause(CONTROLLER)

    def back() -> float:
        slurm.resume(CONTROLLER)
        while not slurm.answers():
            time.sleep(0.02)
        return time.time()

    return back


def returned(slurm: Slurm, away: Callable[[Slurm], Callable[[], float]], chance: random.Random) -> list[float]:
    """Return, for each node, the seconds from the controller's return until its drain is written."""
    slurm.clear()
    since = log_of(slurm).stat().st_size
    with ExitStack() as stack:
        hosts = [SlurmHost(Path(stack.enter_context(folder())), slurm, name, gpus=GPUS) for name in slurm.names]
        daemons = [stack.enter_context(host.acting()) for host in hosts]
        for daemon in daemons:
            daemon.wait_status("healthy")
            daemon.wait(partial(is_known, daemon), "the node to be known", every=0.2)
        back = away(slurm)
        for host in hosts:
            host.breaks()
        time.sleep(chance.uniform(*AWAY))
        answers = back()
        for host, daemon in zip(hosts, daemons, strict=True):
            daemon.wait(partial(updates, slurm, host.node, since), "the drain", every=0.2)
        return [updates(slurm, host.node, since)[0].at - answers for host in hosts]


def folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="gw-", ignore_cleanup_errors=True)


def is_known(daemon: RunningDaemon) -> bool:
    return bool(acting_of(daemon)["schedulers"][0]["reachable"])


def main() -> None:
    if missing := missing_parts():
        print(f"Not measured, since it runs a real Slurm: {'; '.join(missing)}\n")
        return
    if not apart(network=False):
        return
    chance, rows = random.Random(0), []
    wanted = Limits().away + spread_of_return(NODES + PHANTOMS)
    with cluster(nodes=NODES, phantoms=PHANTOMS, slurmd_timeout=3600) as slurm:
        for how in (killed, stopped):
            took = [seconds for _ in range(ROUNDS) for seconds in returned(slurm, how, chance)]
            rows.append((how.__name__, len(took), spread(took), f"{percentile(took, 0.9):.2f}", f"<= {wanted:.2f}"))
    head = ("the controller was", "drains", "s", "p90, s", "wanted, s")
    table("From the controller's return to the drain, 100 nodes in the pool: median (least-most)", head, rows)


if __name__ == "__main__":
    main()
