"""Whether a job on a machine that is about to go is waited for any longer. Pure.

A job of one node is done once each of its ranks that was signalled has acknowledged, or has ended. Of a job of several nodes a
node sees its own ranks only, and a requeue ends them all: there an acknowledgement counts for its own rank, unless it says that it
holds for all of them. Steps beside each other each know their own ranks: then those here are waited for one by one as well. Else Slurm's report that no step of the job runs any more ends the wait, or its time does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from gpuwarden.features.evacuation.policy.event_data import is_number
from gpuwarden.features.evacuation.policy.model import Acknowledged, JobState
from gpuwarden_collectors.receivers.facts import Kind, LocalJob, Receiver, Role
from gpuwarden_collectors.slurm.departing_facts import SlurmJob


def has_other_nodes(job: LocalJob, slurm: SlurmJob | None) -> bool:
    """True if the job has other nodes, by the controller's answer; without one, by the environment of its ranks."""
    return job.elsewhere if slurm is None else slurm.several


def done(job_state: JobState, job: LocalJob, slurm: SlurmJob | None) -> bool:
    """True if nothing of the job is waited for, neither here nor on its other nodes if it has any."""
    acknowledged = job_state.acknowledged
    if has_other_nodes(job, slurm):
        # A container that has ended here loses nothing with this machine; a job of Slurm's ends on all its nodes.
        if acknowledged.all_ranks:
            return len(job_state.steps) < 2 or _all_acknowledged(job_state, job)
        return job.kind is not Kind.SLURM and _ended(job_state, job)
    return _all_acknowledged(job_state, job)


def steps_decide(job_state: JobState, job: LocalJob, slurm: SlurmJob) -> bool:
    """True if the job is done once none of its steps runs any more: its ranks here were tasks of steps, and have ended.

    Ranks that a batch script has started by itself, here or over ssh, are in no step; what it runs once its steps have
    ended is no rank, unless it has a GPU. Of a heterogeneous job each part has steps of its own, and one part is not
    asked for those of another.
    """
    if not slurm.several or slurm.part or job_state.acknowledged.all_ranks or not job_state.in_steps:
        return False
    left = (rank for rank in _ranks(job) if rank.gpu or is_number(rank.step))
    return bool(job_state.signalled) and not _signalled_here(job_state, job) and not any(left)


def _ended(job_state: JobState, job: LocalJob) -> bool:
    """True if the signalled processes have ended and left no rank behind: a launcher starts others in their place."""
    return bool(job_state.signalled) and not _signalled_here(job_state, job) and not _ranks(job)


def _all_acknowledged(job_state: JobState, job: LocalJob) -> bool:
    """True if each signalled process has acknowledged or ended. If none was signalled, all ranks must have
    acknowledged: they may have read the notice themselves.
    """
    acknowledged = job_state.acknowledged
    if job_state.signalled:
        waited = _signalled_here(job_state, job)
        if not waited:
            return _ended(job_state, job)
    else:
        waited = _ranks(job) if acknowledged.at is not None else []
    if not waited:
        return False
    if len(acknowledged.ranks) >= max(len(job_state.signalled), len(waited)):
        return True  # each has acknowledged, under whatever number
    return len(acknowledged_of(waited, acknowledged)) == len(waited)


def _signalled_here(job_state: JobState, job: LocalJob) -> list[Receiver]:
    return [process for process in job.processes if (process.pid, process.started) in job_state.signalled]


def _ranks(job: LocalJob) -> list[Receiver]:
    return [process for process in job.processes if process.role is Role.RANK]


def acknowledged_of(ranks: Sequence[Receiver], acknowledged: Acknowledged) -> list[Receiver]:
    """Return those of `ranks` that have acknowledged. A number that several of them have names none of them: steps and
    launchers beside each other each count from 0.
    """
    counts = Counter(process.rank for process in ranks)
    return [
        process
        for process in ranks
        if has_acknowledged(process if counts[process.rank] == 1 else replace(process, rank=None), acknowledged)
    ]


def has_acknowledged(process: Receiver, acknowledged: Acknowledged) -> bool:
    """True if `process` has acknowledged, by its PID or as the rank that it is."""
    if process.rank is not None and process.rank in acknowledged.ranks:
        return True
    return (process.pid, process.started) in acknowledged.processes or (process.pid, 0) in acknowledged.processes
