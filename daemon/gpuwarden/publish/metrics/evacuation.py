"""The evacuation of jobs as published. Pure functions of its part of the snapshot.

It holds no name of a user or a job, only the job's number in its scheduler, or the container's id.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuwarden.policy.evacuation.model import Evacuation, Given, JobState
from gpuwarden.publish.snapshot import Evacuations, Snapshot
from gpuwarden.publish.times import rfc3339, when

Document = dict[str, Any]
Sample = tuple[tuple[str, ...], float]

OUTCOMES = ("sent", "local_only", "watched", "unsent", "unknown")
"""The results of signalling a job; `local_only`: sent, but the job has other nodes, whose ranks were not signalled."""


def document(evacuations: Evacuations) -> Document:
    return {
        "plan": list(evacuations.preview),
        "error": evacuations.error,
        "departures": [_evacuation(one) for one in evacuations.evacuations],
    }


def _evacuation(evacuation: Evacuation) -> Document:
    final, approved = evacuation.final_node_state, evacuation.approved
    return {
        "notice": evacuation.id,
        "kind": evacuation.kind,
        "since": rfc3339(evacuation.at.wall),
        "deadline": when(evacuation.deadline),
        "over": when(evacuation.over),
        "jobs": [_job(name, job) for name, job in evacuation.jobs.items()],
        "final_node_state": None
        if final is None
        else {"what": final.what, "result": final.result.value, "text": final.text},
        "approval": None
        if approved is None
        else {"result": approved.result.value, "tries": approved.tries, "text": approved.text},
    }


def _job(name: str, job: JobState) -> Document:
    acknowledged = job.acknowledged
    return {
        "job": name,
        "way": job.way.value,
        "signal": job.signal,
        "result": job.result.value,
        "signalled": job.count,
        "signalled_at": when(job.signalled_at),
        "local_only": job.local_only,
        "text": job.text,
        "acknowledged_by": acknowledged.by,
        "acknowledged_at": when(acknowledged.at),
        "saved": acknowledged.saved,
        "all_ranks": acknowledged.all_ranks,
        "step": acknowledged.step,
        "requeue": job.requeued.value,
        "requeued_at": when(job.requeued_at),
        "requeue_text": job.requeued_text,
    }


# --- samples for metrics


def signalled(snapshot: Snapshot) -> Iterator[Sample]:
    """Counts by outcome. Every outcome is present from the start, so that no series first appears with its first job."""
    return (((outcome,), snapshot.evacuations.outcomes.get(outcome, 0)) for outcome in OUTCOMES)


def signal_seconds(snapshot: Snapshot) -> Iterator[Sample]:
    """The histogram, where a notice may come: its first value must not be the first that is scraped of it."""
    times = snapshot.evacuations.signal_seconds
    if snapshot.notice_sources or any(times.counts):
        yield from times.samples()


def acknowledged(snapshot: Snapshot) -> Iterator[Sample]:
    """Counts by acknowledgement, every one present from the start, as in `signalled`."""
    return (((given.value,), snapshot.evacuations.answers.get(given, 0)) for given in Given)
