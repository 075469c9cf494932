"""A training on two nodes of a real Slurm, one of which is terminated: the time of each step until it runs elsewhere.

The notice comes from the simulator of a metadata service, queried by a hanging GET. Once with ranks that end at Slurm's SIGTERM, and
once with ranks that wait to be killed, which slurmd does after 5 s at the earliest, whatever KillWait is. In turns with it: what an
administrator would run, a drain and a bare `scontrol requeue` of such a training, which saves nothing.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[1] / "tests"))

from apart import apart
from bench_evacuation import INTERVAL, SOURCES, Asked, until
from bench_slurm import cluster
from common import spread, table
from support.daemons import RunningDaemon
from support.metadata import Simulator, beside
from support.slurm import Slurm, missing_parts
from support.slurm_hosts import SlurmHost
from support.slurm_trainings import Training

ROUNDS = 5
LIMIT = 8.0  # seconds
RANKS = {"go when Slurm tells them": "end", "wait to be killed": "stay"}
SOURCE = SOURCES[-1]
STEPS = (
    "the daemon knows", "excluded", "both ranks signalled", "both ranks saved", "requeued and pending", "running elsewhere",
)  # fmt: skip


@contextmanager
def node(slurm: Slurm, name: str, service: Simulator) -> Iterator[RunningDaemon]:
    """Yield a node's daemon, which queries the service and has no earlier state."""
    folder = slurm.folder / "hosts" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    host = SlurmHost(folder, slurm, name)
    host.config.write_text(
        f'{host.config.read_text()}[termination]\nsources = ["{SOURCE.name}"]\n[termination.{SOURCE.name}]\n'
        f'endpoint = "{service.endpoint}"\ninterval = "{INTERVAL * 1000:.0f}ms"\n'
    )
    with host.acting() as daemon:
        daemon.wait_status("healthy")
        yield daemon


def departed(slurm: Slurm, after: str) -> list[float]:
    """Return the seconds from the notice to each of STEPS."""
    slurm.clear()
    cloud = SOURCE.cloud()
    asked = Asked(cloud, SOURCE)
    training = Training(slurm, agrees=True, after=after)
    with beside(cloud) as service, node(slurm, min(training.nodes()), service) as daemon:
        until(lambda: asked.waits, "the daemon to wait for an answer")
        began = time.time()
        service.set_value_from_thread(SOURCE.key, SOURCE.ends())
        runs_elsewhere(slurm, training)
        daemon.wait(lambda: b'"requeued"' in daemon.get("/v1/events")[1], "to say so")
        events = json.loads(daemon.get("/v1/events")[1])["events"]
    at = {event["kind"]: datetime.fromisoformat(event["at"]).timestamp() for event in reversed(events)}
    ends = [
        at["noticed"], at["excluded"], last(training, "signal", 0), last(training, "saved", 0), at["requeued"],
        last(training, "begins", 1),
    ]  # fmt: skip
    return [end - began for end in ends]


def requeued(slurm: Slurm, after: str) -> float:
    """Requeue a training by hand, without a daemon, and return the seconds until it runs elsewhere."""
    slurm.clear()
    training = Training(slurm, answers=False, after=after)
    began = time.time()
    slurm.drain(min(training.nodes()), "by hand")
    slurm.scontrol("requeue", str(training.job))
    runs_elsewhere(slurm, training)
    return last(training, "begins", 1) - began


def runs_elsewhere(slurm: Slurm, training: Training) -> None:
    slurm.wait(lambda: len(training.reported("begins")) == 4, "both ranks to begin again")


def last(training: Training, event: str, which: int) -> float:
    """Return when the later of the two ranks reported it; `which`: for the first time, or the second."""
    times: list[Any] = [training.reported(event, rank)[which]["at"] for rank in range(2)]
    return float(max(times))


def main() -> None:
    missing = missing_parts()
    if missing:
        print(f"Not measured, since it runs a real Slurm: {'; '.join(missing)}\n")
        return
    if not apart(network=False):
        return
    with cluster() as slurm:
        rows = [row(slurm, *kind) for kind in RANKS.items()]
    title = f"A training leaves a node that goes: seconds from the notice, median (least-most) of {ROUNDS}"
    table(title, ("ranks", *STEPS, "wanted", "a drain and a bare requeue", "ratio"), rows)


def row(slurm: Slurm, kind: str, after: str) -> list[str]:
    rounds = [(departed(slurm, after), requeued(slurm, after)) for _ in range(ROUNDS)]
    ours, bare = [durations for durations, _ in rounds], [other for _, other in rounds]
    ratios = [a[-1] / b for a, b in zip(ours, bare, strict=True)]
    steps = [spread([durations[n] for durations in ours]) for n in range(len(STEPS))]
    return [kind, *steps, f"<= {LIMIT:g}", spread(bare), f"{spread(ratios)}x"]


if __name__ == "__main__":
    main()
