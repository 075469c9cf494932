"""The cost of many short jobs: growth of the ledger and CPU of judging, compared with one long job on each GPU of the node.

A simulated node of eight GPUs, judged every 5 s with the real judge, its events in a real ledger; two of its hours with 2,000 jobs in each.
CPU time of the judge and of the writing of the ledger, not of making the facts. Of 2,000 jobs one in ten fails, and one in a hundred has an
Xid. A node without jobs is judged, too. All are judged in turns; a ratio is of neighbours in time.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import process_time

from common import spread, table
from gpuwarden.health.checkpoint import checkpoint
from gpuwarden.health.model import EventKind
from gpuwarden.ledger.ledger import Ledger
from gpuwarden_collectors.facts import GpuProcess
from gpuwarden_collectors.slurm.jobs_facts import Job, JobProcess, JobsFacts
from support.job_hosts import UID
from support.ledgers import HERE, PATIENCE
from support.why_hosts import WhyHost

GPUS, PER_HOUR, HOURS, TURNS = 8, 2_000, 2.0, 3
STEP, JOBS_EVERY, KEPT_FOR = 5.0, 15.0, 300.0
LASTS = GPUS * 3_600.0 / PER_HOUR
MONTH = 30 * 24.0
MIB_MOST, CPU_MOST = 20.0, 0.02
"""MiB of ledger in a month; per cent of a CPU."""


@dataclass(frozen=True)
class Cost:
    cpu: float
    bytes: int
    events: Counter[str]


def job(number: int, began: float, now: float) -> Job:
    """Return the job as the notes have it, and the controller."""
    ended = began + LASTS - 1.0
    if ended > now:
        return Job(id=number, uid=UID, gpus=(number % GPUS,), started=began)
    code = int(number % 10 == 0)
    state = "FAILED" if code else "COMPLETED"
    return Job(id=number, uid=UID, gpus=(number % GPUS,), started=began, ended=ended, state=state, exit_code=code)


def short_jobs(host: WhyHost, since: float) -> int:
    """Set the present short jobs. Returns the number of the newest."""
    now, every = host.uptime, 3_600.0 / PER_HOUR
    newest = int((now - since) / every)
    oldest = max(1, newest - int((KEPT_FOR + LASTS) / every))
    place(host, [job(number, since + number * every, now) for number in range(oldest, newest + 1)])
    return newest


def long_jobs(host: WhyHost, since: float) -> int:
    """Set one job on each GPU, present from the start."""
    place(host, [Job(id=number, uid=UID, gpus=(number - 1,), started=since) for number in range(1, GPUS + 1)])
    return 0


def place(host: WhyHost, jobs: Sequence[Job]) -> None:
    running = [job for job in jobs if job.ended is None]
    processes = tuple(JobProcess(pid=10_000 + job.id, uid=UID, job=job.id, known_from="cgroup") for job in running)
    host.job_facts = JobsFacts(jobs=tuple(jobs), processes=processes)
    host.free()
    for running_job in running:
        host.gpus[running_job.gpus[0]] = replace(
            host.gpus[running_job.gpus[0]], processes=(GpuProcess(pid=10_000 + running_job.id),)
        )


KINDS: Mapping[str, Callable[[WhyHost, float], int] | None] = {"none": None, "long": long_jobs, "short": short_jobs}


async def measured(path: Path, hours: float, kind: str) -> Cost:
    host, jobs = WhyHost(GPUS), KINDS[kind]
    host.without_slurm()
    ledger = Ledger(path, machine=HERE, boot_id=host.boot_id)
    assert await ledger.open(PATIENCE) is not None
    events: Counter[str] = Counter()
    since, newest, read = host.uptime, 0, 0.0
    host.ledger.clear()
    spent = 0.0
    while host.uptime - since < hours * 3_600.0:
        host.uptime += STEP
        lines = []
        if jobs is not None and host.uptime - read >= JOBS_EVERY:
            before, newest, read = newest, jobs(host, since), host.uptime
            lines = [host.xid(n % GPUS, 31) for n in range(before + 1, newest + 1) if n % 100 == 0]
        began = process_time()
        host.step(*lines)
        events.update(str(event.kind) for event in host.ledger)
        ledger.append(host.ledger)
        host.ledger.clear()
        if ledger.checkpoint_due(host.now):
            ledger.append(checkpoint=checkpoint(host.state, host.now))
        ledger.tend()
        await ledger.flush(PATIENCE)
        spent += process_time() - began
    await ledger.close(PATIENCE)
    return Cost(spent, sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*")), events)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--hours",
        type=float,
        default=HOURS,
        help="of each node (default: 2; the first has the burst that the budget allows)",
    )
    parser.add_argument("--turns", type=int, default=TURNS, help="of all nodes (default: 3)")
    options = parser.parse_args()
    hours: float = options.hours
    turns = [turn(hours) for _ in range(options.turns)]
    cpu = [[100.0 * turn[kind].cpu / (hours * 3_600.0) for kind in KINDS] for turn in turns]
    above = [short - long for _, long, short in cpu]
    mib = [(turn["short"].bytes - turn["none"].bytes) / 2**20 * MONTH / hours for turn in turns]
    events = turns[0]["short"].events
    table(
        f"{PER_HOUR} short jobs an hour on {GPUS} GPUs, {hours:g} hours, {options.turns} turns",
        ("what", "median (least-most)", "at most"),
        [
            ["CPU without jobs, per cent of one", spread([none for none, _, _ in cpu], 4), ""],
            ["CPU with one long job on each GPU", spread([long for _, long, _ in cpu], 4), ""],
            ["CPU with short jobs", spread([short for _, _, short in cpu], 4), ""],
            ["CPU of short jobs above that of long ones", spread(above, 4), f"{CPU_MOST:g}"],
            ["ratio of these two", spread([short / long for _, long, short in cpu]), ""],
            ["ledger above that without jobs, MiB a month", spread(mib, 1), f"{MIB_MOST:g}"],
            ["records an hour", f"{events[EventKind.JOB_ENDED] / hours:.0f}", ""],
            ["begins an hour", f"{events[EventKind.JOB_BEGUN] / hours:.0f}", ""],
        ],
    )
    return int(median(above) > CPU_MOST or median(mib) > MIB_MOST)


def turn(hours: float) -> dict[str, Cost]:
    """Return what each kind of node costs."""
    with tempfile.TemporaryDirectory(prefix="gw-") as folder:
        paths = {kind: Path(folder) / kind / "ledger.db" for kind in KINDS}
        return {kind: asyncio.run(measured(path, hours, kind)) for kind, path in paths.items()}


if __name__ == "__main__":
    sys.exit(main())
