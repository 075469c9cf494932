"""What many short jobs cost: the growth of the ledger and the CPU of judging, beside the same node without jobs.

A simulated node of eight GPUs, judged every 5 s with the real judge, its events in a real ledger; two of its hours with 2,000 jobs in each.
CPU time of this process, the writing of the ledger included. Of 2,000 jobs one in ten fails, and one in a hundred has an Xid.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from time import process_time

from common import table
from gpuwarden.health.checkpoint import checkpoint
from gpuwarden.health.model import EventKind
from gpuwarden.ledger.ledger import Ledger
from gpuwarden_collectors.facts import GpuProcess
from gpuwarden_collectors.slurm.jobs_facts import Job, JobProcess, JobsFacts
from support.job_hosts import UID
from support.ledgers import HERE, PATIENCE
from support.why_hosts import WhyHost

GPUS, PER_HOUR, HOURS = 8, 2_000, 2.0
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


def place_jobs(host: WhyHost, since: float) -> int:
    """Let the jobs of now be here. Returns the number of the newest."""
    now, every = host.uptime, 3_600.0 / PER_HOUR
    newest = int((now - since) / every)
    oldest = max(1, newest - int((KEPT_FOR + LASTS) / every))
    jobs = [job(number, since + number * every, now) for number in range(oldest, newest + 1)]
    running = [one for one in jobs if one.ended is None]
    processes = tuple(JobProcess(pid=10_000 + one.id, uid=UID, job=one.id, known_from="cgroup") for one in running)
    host.job_facts = JobsFacts(jobs=tuple(jobs), processes=processes)
    host.free()
    for one in running:
        host.gpus[one.gpus[0]] = replace(host.gpus[one.gpus[0]], processes=(GpuProcess(pid=10_000 + one.id),))
    return newest


async def measured(path: Path, *, with_jobs: bool) -> Cost:
    host = WhyHost(GPUS)
    host.without_slurm()
    ledger = Ledger(path, machine=HERE, boot_id=host.boot_id)
    assert await ledger.open(PATIENCE) is not None
    events: Counter[str] = Counter()
    since, newest, read = host.uptime, 0, 0.0
    host.ledger.clear()
    began = process_time()
    while host.uptime - since < HOURS * 3_600.0:
        host.uptime += STEP
        lines = []
        if with_jobs and host.uptime - read >= JOBS_EVERY:
            before, newest, read = newest, place_jobs(host, since), host.uptime
            lines = [host.xid(n % GPUS, 31) for n in range(before + 1, newest + 1) if n % 100 == 0]
        host.step(*lines)
        events.update(str(event.kind) for event in host.ledger)
        ledger.append(host.ledger)
        host.ledger.clear()
        if ledger.checkpoint_due(host.now):
            ledger.append(checkpoint=checkpoint(host.state, host.now))
        ledger.tend()
        await ledger.flush(PATIENCE)
    spent = process_time() - began
    await ledger.close(PATIENCE)
    return Cost(spent, sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*")), events)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="gw-") as folder:
        without = asyncio.run(measured(Path(folder) / "without/ledger.db", with_jobs=False))
        jobs = asyncio.run(measured(Path(folder) / "jobs/ledger.db", with_jobs=True))
    cpu = 100.0 * (jobs.cpu - without.cpu) / (HOURS * 3_600.0)
    mib = (jobs.bytes - without.bytes) / 2**20 * MONTH / HOURS
    records = jobs.events[EventKind.JOB_ENDED]
    table(
        f"{PER_HOUR} short jobs an hour on {GPUS} GPUs, {HOURS:g} hours",
        ("what", "value", "at most"),
        [
            ["CPU above a node without jobs, per cent of one", f"{cpu:.4f}", f"{CPU_MOST:g}"],
            ["ledger above it, MiB a month", f"{mib:.1f}", f"{MIB_MOST:g}"],
            ["records an hour", f"{records / HOURS:.0f}", ""],
            ["begins an hour", f"{jobs.events[EventKind.JOB_BEGUN] / HOURS:.0f}", ""],
        ],
    )


if __name__ == "__main__":
    main()
