"""Maps jobs to GPUs, by Slurm's allocation and by the processes that have the GPU open."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from gpuwarden.health.model import Evidence
from gpuwarden.health.view import Sight
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import GpuFacts
from gpuwarden_collectors.slurm.jobs_facts import Job, JobsFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuJob:
    """A job on one GPU. `pids`: its processes that have the GPU open; with `ended`, after the end of the job."""

    slot: str
    job: int
    uid: int | None = None
    user: str = ""
    job_name: str = ""
    pids: tuple[int, ...] = ()
    ended: bool = False


def order(slots: Collection[str], gpus: Mapping[str, GpuFacts], minors: Sequence[int] = ()) -> tuple[str, ...]:
    """Return the slot of the GPU for each index of Slurm's list (IDX).

    `slots`: all expected GPUs, so that indices do not change when one is lost. Without `minors` Slurm sorts by PCI
    address, and each MIG instance has an index.
    """
    by_address = sorted(slots)
    if not minors:
        return tuple(slot for slot in by_address for _ in range(max(1, len(gpus[slot].mig) if slot in gpus else 1)))
    by_minor = {facts.minor: slot for slot, facts in gpus.items() if facts.minor is not None}
    lost = [slot for slot in by_address if slot not in by_minor.values()]
    return tuple(by_minor.get(minor) or _at(by_address, minor, lost) for minor in minors)


def _at(by_address: Sequence[str], minor: int, lost: Sequence[str]) -> str:
    """Return the slot of a lost GPU by its minor number: minors follow the PCI order. "" if it is not lost."""
    at = by_address[minor] if 0 <= minor < len(by_address) else ""
    return at if at in lost else ""


def on_gpus(facts: JobsFacts, slots: Collection[str], gpus: Mapping[str, GpuFacts]) -> dict[str, tuple[GpuJob, ...]]:
    """Return the jobs on each GPU by slot, in order of job numbers."""
    jobs = {job.id: job for job in facts.jobs}
    gpu_jobs: dict[tuple[str, int], GpuJob] = {}
    for slot, job in _given(facts, order(slots, gpus, facts.minors)):
        gpu_jobs[slot, job.id] = _of(slot, job, ended=False)
    for slot, number, pids, ended in _used(facts, gpus):
        old = gpu_jobs.get((slot, number)) or _of(slot, jobs.get(number, Job(id=number)), ended=ended)
        gpu_jobs[slot, number] = GpuJob(
            slot=slot, job=number, uid=old.uid, user=old.user, job_name=old.job_name, pids=pids, ended=old.ended
        )
    by_slot: dict[str, tuple[GpuJob, ...]] = {}
    for (slot, _), gpu_job in sorted(gpu_jobs.items()):
        by_slot[slot] = (*by_slot.get(slot, ()), gpu_job)
    return by_slot


def seen_on_gpus(pins: Collection[str], sight: Sight) -> dict[str, tuple[GpuJob, ...]]:
    """Return the jobs on each GPU now by slot; empty while jobs are unknown. `pins`: slots of the expected GPUs."""
    jobs, gpus = sight.jobs, sight.gpus
    if jobs is None:
        return {}
    return on_gpus(jobs, {*pins, *gpus}, gpus)


def job_numbers(pins: Collection[str], sight: Sight) -> Mapping[str, frozenset[int]]:
    """Return the job numbers on each GPU by slot; empty while jobs are unknown. `pins` as in `seen_on_gpus`."""
    return {slot: frozenset(job.job for job in jobs) for slot, jobs in seen_on_gpus(pins, sight).items()}


def _given(facts: JobsFacts, slots: Sequence[str]) -> Iterator[tuple[str, Job]]:
    for job in facts.jobs:
        if job.ended is None:
            yield from ((slots[index], job) for index in job.gpus if 0 <= index < len(slots) and slots[index])


def _used(facts: JobsFacts, gpus: Mapping[str, GpuFacts]) -> Iterator[tuple[str, int, tuple[int, ...], bool]]:
    """Yield slot, job number, its processes on the GPU, and whether the job ended before one of them."""
    owners = {process.pid: process for process in facts.processes}
    for slot, gpu in gpus.items():
        mine = [owners[process.pid] for process in gpu.processes if process.pid in owners]
        for number in sorted({process.job for process in mine if process.job is not None}):
            theirs = [process for process in mine if process.job == number]
            pids = tuple(dict.fromkeys(process.pid for process in theirs))
            yield slot, number, pids, any(process.ended is not None for process in theirs)


def _of(slot: str, job: Job, *, ended: bool) -> GpuJob:
    return GpuJob(slot=slot, job=job.id, uid=job.uid, user=job.user, job_name=job.job_name, ended=ended)


def under(evidence: Evidence, before: Evidence | None, sight: Sight, slots: Collection[str], slot: str) -> Evidence:
    """Return the evidence with the jobs that were on the GPU when the finding was first seen, but no later jobs.

    `before`: the previous evidence of the finding, None if it is new.
    """
    if not slot or "job" in evidence:
        return evidence
    if before is not None:
        kept = {name: before[name] for name in ("job", "uid") if name in before}
        return {**evidence, **kept} if kept else evidence
    if sight.jobs is None:
        return evidence
    jobs = seen_on_gpus(slots, sight).get(slot, ())
    if not jobs:
        return evidence
    uids = dict.fromkeys(str(job.uid) for job in jobs if job.uid is not None)
    return {**evidence, "job": " ".join(str(job.job) for job in jobs[:8]), "uid": " ".join(list(uids)[:8])}
