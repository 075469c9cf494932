"""A process that follows jobs and writes their records into a ledger until it is killed: python -m support.why_killed FOLDER

Its world goes on from where the one before was killed: a second of the process is some minutes of jobs. Job N begins each `EVERY` seconds
and ends `RUNS` later; the notes of prolog and epilog, which say so, outlive the process.
"""

from __future__ import annotations

import asyncio
import math
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from gpuwarden.features.why.memory import record_of
from gpuwarden.features.why.model import SETTLES
from gpuwarden.health.checkpoint import checkpoint
from gpuwarden.health.model import EventKind
from gpuwarden.ledger.ledger import Ledger
from gpuwarden.ledger.reader import read_only
from gpuwarden_collectors.slurm.jobs_facts import Job, JobsFacts
from gpuwarden_collectors.slurm.jobs_register import KEPT_FOR
from support.commands import environment
from support.job_hosts import UID
from support.ledgers import HERE, PATIENCE
from support.why_hosts import WhyHost

EVERY, RUNS = 150.0, 130.0
STEP = 5.0
BEGAN = 10_000.0
READY = "follows"
LEAST = 3
"""Jobs that ended, and their records were due, in the time of the world that there is at least."""


class World:
    """The node of the jobs, at a time that is kept in a file."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "uptime"
        self.host = WhyHost(2, uptime=float(self.file.read_text()) if self.file.exists() else BEGAN)

    def goes_on(self) -> None:
        """Let `STEP` seconds pass: jobs begin and end, and their notes show it."""
        host = self.host
        host.uptime += STEP
        self.file.with_suffix(".new").write_text(str(host.uptime))
        self.file.with_suffix(".new").replace(self.file)
        last = int((host.uptime - BEGAN) // EVERY)
        jobs = [_job(number, host.uptime) for number in range(max(0, last - 10), last + 1)]
        host.job_facts = JobsFacts(
            jobs=tuple(job for job in jobs if job.ended is None or host.uptime - job.ended < KEPT_FOR)
        )
        host.free()


def _job(number: int, now: float) -> Job:
    began = BEGAN + number * EVERY
    ended = began + RUNS if began + RUNS <= now else None
    return Job(id=number + 1, uid=UID, gpus=(0, 1), started=began, ended=ended)


async def follows(folder: Path, until: float = math.inf) -> None:
    """Follow the jobs, and write what is due, until that time of the world."""
    world = World(folder)
    host = world.host
    ledger = Ledger(folder / "ledger.db", machine=HERE, boot_id=host.boot_id)
    memory = await ledger.open(PATIENCE)
    assert memory is not None
    host.ledger = list(memory.events)
    host.restart_daemon()
    sys.stdout.write(f"{READY}\n")
    sys.stdout.flush()
    while host.uptime < until:
        host.ledger.clear()
        world.goes_on()
        host.step()
        ledger.append(host.ledger)
        if ledger.checkpoint_due(host.now):
            ledger.append(checkpoint=checkpoint(host.state, host.now))
        ledger.tend()
        await asyncio.sleep(0.005)
    assert await ledger.close(PATIENCE)


def killed(folder: Path, times: int, seed: int) -> Counter[int]:
    """Kill one after the other at chance moments. Return how many of the jobs that settled have how many records."""
    chance = random.Random(seed)
    for _ in range(times):
        process = subprocess.Popen(
            [sys.executable, "-m", "support.why_killed", str(folder)], env=environment(folder), stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stdout.readline() == f"{READY}\n".encode()
        time.sleep(chance.uniform(0.0, 1.0))
        process.kill()
        process.communicate()
    return records(folder)


def records(folder: Path) -> Counter[int]:
    """Let what is left settle, and count."""
    enough = BEGAN + RUNS + 3 * SETTLES + (LEAST + 1) * EVERY
    asyncio.run(follows(folder, max(enough, float((folder / "uptime").read_text()) + 3 * SETTLES)))
    now = float((folder / "uptime").read_text())
    with read_only(folder / "ledger.db") as reader:
        job_records = [record_of(entry.event) for entry in reader.events(kinds=(EventKind.JOB_ENDED,), limit=1_000_000)]
    of_job = Counter(record.epoch.name for record in job_records if record is not None)
    over = int((now - BEGAN - RUNS - 3 * SETTLES) // EVERY)
    return Counter(of_job[f"slurm/{number}"] for number in range(1, over + 1))


if __name__ == "__main__":
    asyncio.run(follows(Path(sys.argv[1])))
