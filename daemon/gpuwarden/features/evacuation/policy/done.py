"""Decides whether an evacuation still waits for a job. Pure.

A job of one node is done once each signalled rank has acknowledged or ended. In a job of several nodes, each node sees
only its own ranks, but a requeue ends all of them: an acknowledgement then counts for its own rank only, unless it is
for all ranks. Parallel steps each know only their own ranks: then those here are also waited for one by one. Otherwise
the wait ends when Slurm reports that no step of the job runs any more, or when the job's time is up.
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
    """Return True if the job has other nodes, by the controller's answer or else by its ranks' environment."""
    return job.elsewhere if slurm is None else slurm.several


def done(job_state: JobState, job: LocalJob, slurm: SlurmJob | None) -> bool:
    """Return True if nothing of the job is waited for, neither here nor on its other nodes if it has any."""
    acknowledged = job_state.acknowledged
    if has_other_nodes(job, slurm):
        # A container that has ended here loses nothing with this machine; a job of Slurm's ends on all its nodes.
        if acknowledged.all_ranks:
            return len(job_state.steps) < 2 or _all_acknowledged(job_state, job)
        return job.kind is not Kind.SLURM and _ended(job_state, job)
    return _all_acknowledged(job_state, job)


def steps_decide(job_state: JobState, job: LocalJob, slurm: SlurmJob) -> bool:
    """Return True if the job is done once none of its steps runs: its ranks here were tasks of steps, and have ended.

    Ranks that a batch script started itself, here or over ssh, are in no step. What it runs after its steps have ended
    is no rank, unless it has a GPU. In a heterogeneous job each part has its own steps, and no part lists those of
    another.
    """
    if not slurm.several or slurm.part or job_state.acknowledged.all_ranks or not job_state.in_steps:
        return False
    left = (rank for rank in _ranks(job) if rank.gpu or is_number(rank.step))
    return bool(job_state.signalled) and not _signalled_here(job_state, job) and not any(left)


def _ended(job_state: JobState, job: LocalJob) -> bool:
    """Return True if the signalled processes have ended and left no rank: a launcher starts others in their place."""
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
    """Return those of `ranks` that have acknowledged. A rank number that several of them have identifies none: parallel
    steps and launchers each count from 0.
    """
    counts = Counter(process.rank for process in ranks)
    return [
        process
        for process in ranks
        if has_acknowledged(process if counts[process.rank] == 1 else replace(process, rank=None), acknowledged)
    ]


def has_acknowledged(process: Receiver, acknowledged: Acknowledged) -> bool:
    """Return True if `process` has acknowledged, by its PID or by its rank."""
    if process.rank is not None and process.rank in acknowledged.ranks:
        return True
    return (process.pid, process.started) in acknowledged.processes or (process.pid, 0) in acknowledged.processes
