"""Jobs on a real Slurm whose ranks write down what signals they get."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from gpuwarden.features.evacuation.slurm.job_signals import Signalling, SignalOutcome, find_steps, signal_steps
from gpuwarden_collectors.slurm.client import Commands
from gpuwarden_collectors.slurm.departing import read_jobs
from gpuwarden_collectors.slurm.departing_facts import SlurmJob
from support.slurm import Slurm

_RANK = """#!/bin/sh
# rank.sh SIGNALS: it catches these, and is not ended by them
case "$SLURM_STEP_ID" in *[!0-9]*) ;; *) step=$SLURM_STEP_ID;; esac
signals={folder}/signals.$SLURM_JOB_ID.${{SLURM_RESTART_COUNT:-0}}.${{step:-batch}}.$SLURM_PROCID
for signal in $1; do trap "echo $signal >>$signals" $signal; done
echo up >>$signals
while :; do /bin/sleep 1 & wait $!; done
"""
Received = Mapping[str, Counter[str]]


class Ranks:
    """`script` in a batch script is one of them: `srun SCRIPT "USR1 TERM"`."""

    def __init__(self, slurm: Slurm) -> None:
        self.slurm = slurm
        self.folder = slurm.folder / "jobs"
        self.script = str(self.folder / "rank.sh")
        (self.folder / "rank.sh").write_text(_RANK.format(folder=self.folder))
        (self.folder / "rank.sh").chmod(0o755)

    def start(self, *options: str, ranks: int = 2, catch: str = "USR1", batch: str = "srun {rank}") -> int:
        """The number of a batch job, when all of its ranks are ready to be signalled."""
        job = self.submit(*options, catch=catch, batch=batch)
        self.ready(job, ranks)
        return job

    def submit(self, *options: str, catch: str = "USR1", batch: str = "srun {rank}") -> int:
        return self.slurm.submit(batch.format(rank=f"{self.script} '{catch}'"), *options)

    def ready(self, job: int, ranks: int = 2, run: int = 0) -> None:
        self.slurm.wait(lambda: len(self.received(job, run)) == ranks, f"the {ranks} ranks of job {job}")

    def received(self, job: int, run: int = 0) -> Received:
        """Return how often each rank got which signal in that run of the job, by step and rank, such as 0.1."""
        prefix = f"signals.{job}.{run}."
        return {
            path.name.removeprefix(prefix): Counter(path.read_text().split()[1:])
            for path in self.folder.glob(f"{prefix}*")
            if path.read_text().startswith("up\n")
        }

    def wait_received(self, job: int, signal: str, times: int = 1) -> None:
        """Wait until each of them has got it so often."""
        self.slurm.wait(
            lambda: all(counts[signal] >= times for counts in self.received(job).values()),
            f"all ranks of job {job} to get {signal}",
        )


async def the_job(commands: Commands, number: int, node: str = "n1") -> SlurmJob:
    """Return the job as a node of it reads it."""
    return (await read_jobs(commands, node))[number]


async def signal_job(
    commands: Commands, job: SlurmJob, signal: str, steps: Collection[str] = ("0", "1")
) -> SignalOutcome:
    """Signal these steps of the job, as a daemon with ranks in them does once it has marked the job."""
    lookup = await find_steps(commands, job, steps)
    return await signal_steps(commands, job, lookup.steps, signal) if lookup.result is Signalling.READY else lookup
