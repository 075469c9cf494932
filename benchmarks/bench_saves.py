"""A training on two nodes of a real Slurm whose ranks save slowly, beside other load: is any save cut off?

    python benchmarks/bench_saves.py [--runs 12] [--load 4] [--seed 1]

Each run is a separate job: both ranks start, one of the two nodes (or both) is terminated, each rank saves for a random time, and the
run ends once the job is requeued. A save is cut off if its rank was ended before it was complete, or before it began; it is early if it
was not complete at the requeue, though its rank had time until KillWait. The delay of the requeue after the last save is the cost of
waiting.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1] / "tests"))

from apart import apart
from bench_slurm import cluster
from common import spread, table
from support.daemons import RunningDaemon
from support.slurm import Slurm, missing_parts
from support.slurm_hosts import SlurmHost
from support.slurm_trainings import Training

SLOWEST = 8.0  # seconds of one save; both fit before the end of the shortest notice


@dataclass(frozen=True, slots=True)
class Kind:
    """`within`: time that the notice gives. `nodes`: number of terminated nodes. The rest as in Training."""

    name: str
    within: int
    nodes: int = 1
    agrees: bool = False
    answers: bool = True
    after: str = "stay"
    then: str = ""


KINDS = (
    Kind("the ranks answer for each other", 45, agrees=True),
    Kind("each answers for itself", 30),
    Kind("they leave, and the batch script goes on", 45, answers=False, after="leave", then="sleep 600"),
    Kind("both nodes go, the ranks answer for each other", 45, nodes=2, agrees=True),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """`cut_off`, `early`: numbers of saves. `waited`: seconds from the last complete save to the requeue."""

    cut_off: int
    early: int
    waited: float


def run(slurm: Slurm, kind: Kind, takes: tuple[float, float]) -> Outcome:
    slurm.clear()
    shutil.rmtree(slurm.folder / "hosts", ignore_errors=True)  # a notice of the run before lies there
    made = {node: _host(slurm, node) for node in slurm.names}
    training = Training(
        slurm, agrees=kind.agrees, answers=kind.answers, takes=takes, after=kind.after, then=kind.then
    )  # fmt: skip
    with ExitStack() as daemons:
        hosts = [made[node] for node in sorted(training.nodes())[: kind.nodes]]
        running = [daemons.enter_context(host.acting()) for host in hosts]
        for daemon in running:
            daemon.wait_status("healthy")
        with ThreadPoolExecutor(len(hosts)) as pool:
            list(pool.map(lambda host: _announce(host, kind.within), hosts))
        slurm.wait(lambda: slurm.job(training.job).get("Restarts") == "1", "the job to be requeued")
        running[0].wait(lambda: any(_requeued(daemon) for daemon in running), "one of them to say so")
        requeued = min(at for daemon in running if (at := _requeued(daemon)))
        slurm.wait(lambda: slurm.job_state(training.job) != "COMPLETING", "its ranks to end")
    wrote = [line["at"] for line in training.reported("wrote") if line["run"] == 0]
    early = 2 - sum(at <= requeued for at in wrote)
    return Outcome(len(training.cut_off()), early, requeued - max(wrote, default=requeued))


def _host(slurm: Slurm, node: str) -> SlurmHost:
    folder = slurm.folder / "hosts" / node
    folder.mkdir(parents=True)
    return SlurmHost(folder, slurm, node)


def _announce(host: SlurmHost, within: int) -> None:
    done = host.command("notify-termination", "--in", f"{within}s", "--reason", "spot", "--run-dir", host.run_dir)
    assert done.returncode == 0, done.stderr


def _requeued(daemon: RunningDaemon) -> float:
    """Return the Unix time of the requeue; 0 if it was not reported."""
    events = json.loads(daemon.get("/v1/events")[1])["events"]
    return next((datetime.fromisoformat(e["at"]).timestamp() for e in events if e["kind"] == "requeued"), 0.0)


@contextmanager
def beside(load: int) -> Iterator[None]:
    """Run that many processes that only count."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(load)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--runs", type=int, default=12, help="of all kinds together")
    parser.add_argument("--load", type=int, default=2 * (os.cpu_count() or 1), help="busy processes beside")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if missing := missing_parts():
        print(f"Not measured, since it runs a real Slurm: {'; '.join(missing)}\n")
        return
    if not apart(network=False):
        return
    chance = random.Random(options.seed)
    outcomes: defaultdict[str, list[Outcome]] = defaultdict(list)
    with cluster() as slurm, beside(options.load):
        for number in range(options.runs):
            kind = KINDS[number % len(KINDS)]
            takes = (round(chance.uniform(0.0, SLOWEST), 2), round(chance.uniform(0.0, SLOWEST), 2))
            outcomes[kind.name].append(outcome := run(slurm, kind, takes))
            print(f"{number + 1:3d}  {kind.name}, {takes}: {outcome}", file=sys.stderr, flush=True)
    rows = [
        [
            name, str(len(runs)), str(2 * len(runs)), str(sum(outcome.cut_off for outcome in runs)),
            str(sum(outcome.early for outcome in runs)), spread([outcome.waited for outcome in runs]),
        ]
        for name, runs in outcomes.items()
    ]  # fmt: skip
    title = f"Saves of up to {SLOWEST:g} s beside {options.load} busy processes"
    table(
        title,
        ("ranks", "runs", "saves", "cut off", "requeued too early", "s from the last whole save to the requeue"),
        rows,
    )


if __name__ == "__main__":
    main()
