"""The test of an ended job's GPUs in Slurm's epilog: until the epilog ends, Slurm allocates them to no other job.

It makes no request to Slurm's controller, since a thousand epilogs may run at once. Jobs that share these GPUs are
found in the prolog's notes and, as in every test, by their processes. 2 GiB of memory always stay free.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gpuwarden.base.paths import job_notes
from gpuwarden.features.active_test.tester.occupancy import Memory, Occupancy
from gpuwarden.health.gpu.jobs import order
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import GpuFacts
from gpuwarden_collectors.slurm.jobs_gres import conf_text, gpu_lines, has_kinds, minors
from gpuwarden_collectors.slurm.jobs_register import registered
from gpuwarden_collectors.slurm.jobs_text import numbers
from gpuwarden_collectors.slurm.node_name import NAME_VARIABLE

CONTEXT = "epilog_slurmd"
"""SLURM_SCRIPT_CONTEXT of an epilog."""


class NoEndedJob(Exception):  # noqa: N818 - of who calls
    """No GPU of a job is to be tested, or this is not the epilog of a job with GPUs. The message says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJob:
    """The job whose epilog this process is in."""

    id: int
    gpus: tuple[int, ...]
    """Slurm's indices of its GPUs on this node."""
    notes: Path
    gres_conf: Path
    node: str
    now: Callable[[], float]
    """CLOCK_BOOTTIME, seconds."""

    def among(self, gpus: Sequence[GpuFacts], due: frozenset[str]) -> tuple[GpuFacts, ...]:
        """Return its GPUs that are due for a test. `due`: slots. Raises NoEndedJob if there is none, or if the controller
        would have to be asked which GPUs they are: the epilogs of a large job all end at once.
        """
        lines = gpu_lines(conf_text(self.gres_conf), self.node)
        if has_kinds(lines):
            raise NoEndedJob(f"{self.gres_conf} has GPUs of several types, whose order only slurm.conf has")
        by_slot = {gpu.slot: gpu for gpu in gpus if gpu.slot}
        slots = order(by_slot, by_slot, minors(lines))
        own = {slots[number] for number in self.gpus if number < len(slots)} & due
        if not own:
            raise NoEndedJob(f"no GPU of job {self.id} is due for a test")
        return tuple(gpu for slot, gpu in by_slot.items() if slot in own)

    def occupancy(self) -> Occupancy:
        """Return the memory that may be used: none if the prolog left no note of the job or another shares a GPU."""
        jobs = registered(self.notes, self.now())
        if self.id not in jobs:
            why = f"the prolog left no note of job {self.id} in {self.notes}, so it is unknown which jobs share its GPUs: set Prolog"
            return Occupancy(Memory.NONE, f"{why} to gpuwarden-slurm-prolog")
        others = [job.id for job in jobs.values() if job.id != self.id and job.ended is None]
        if sharing := [number for number in others if set(jobs[number].gpus) & set(self.gpus)]:
            return Occupancy(Memory.NONE, f"job {sharing[0]} shares a GPU of job {self.id}")
        return Occupancy(Memory.PART, f"job {self.id} has ended")


def ended_job(environment: Mapping[str, str], run_dir: Path, conf: Path, now: Callable[[], float]) -> EndedJob:
    """Return the job whose epilog has this `environment`. `conf`: slurm.conf. Raises NoEndedJob."""
    job, gpus = environment.get("SLURM_JOB_ID", ""), tuple(numbers(environment.get("SLURM_JOB_GPUS", "")))
    if environment.get("SLURM_SCRIPT_CONTEXT") != CONTEXT or not (job.isascii() and job.isdecimal() and len(job) < 12):
        raise NoEndedJob("--of-ended-job is for Slurm's epilog: gpuwarden-slurm-epilog-test calls it there")
    if not gpus:
        raise NoEndedJob(f"job {job} had no GPU here")
    return EndedJob(
        id=int(job),
        gpus=gpus,
        notes=job_notes(run_dir),
        gres_conf=conf.with_name("gres.conf"),
        node=environment.get(NAME_VARIABLE, ""),
        now=now,
    )
