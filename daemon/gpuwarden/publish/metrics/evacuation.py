"""What is published of jobs that are told that their machine ends. Pure functions of what departing shows of itself.

No name of a user or a job is among it but the job's number in its scheduler, or the container's id.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuwarden.policy.evacuation.model import Departure, Given, JobState
from gpuwarden.publish.snapshot import Departures, Snapshot
from gpuwarden.publish.times import rfc3339
from gpuwarden_collectors.facts import Stamp

Document = dict[str, Any]
Sample = tuple[tuple[str, ...], float]

OUTCOMES = ("sent", "local_only", "watched", "unsent", "unknown")
"""What may come of telling a job; `local_only`: sent, but the job has other nodes, whose ranks were not told."""


def document(departures: Departures) -> Document:
    return {
        "plan": list(departures.preview),
        "trouble": departures.trouble,
        "departures": [_departure(one) for one in departures.departures],
    }


def _departure(departure: Departure) -> Document:
    words, approved = departure.last_words, departure.approved
    return {
        "notice": departure.id,
        "kind": departure.kind,
        "since": rfc3339(departure.at.wall),
        "deadline": _when(departure.deadline),
        "over": _when(departure.over),
        "jobs": [_job(name, job) for name, job in departure.jobs.items()],
        "last_words": None if words is None else {"what": words.what, "result": words.result.value, "text": words.text},
        "approval": None
        if approved is None
        else {"result": approved.result.value, "tries": approved.tries, "text": approved.text},
    }


def _job(name: str, job: JobState) -> Document:
    said = job.acknowledged
    return {
        "job": name,
        "way": job.way.value,
        "signal": job.signal,
        "result": job.result.value,
        "told": job.count,
        "told_at": _when(job.told_at),
        "local_only": job.local_only,
        "text": job.text,
        "acknowledged_by": said.by,
        "acknowledged_at": _when(said.at),
        "saved": said.saved,
        "all_ranks": said.all_ranks,
        "step": said.step,
        "requeue": job.requeued.value,
        "requeued_at": _when(job.requeued_at),
        "requeue_text": job.requeued_text,
    }


def _when(stamp: Stamp | None) -> str | None:
    return None if stamp is None else rfc3339(stamp.wall)


# --- samples for metrics


def signalled(snapshot: Snapshot) -> Iterator[Sample]:
    """Each outcome, so that no series is born with its first job."""
    return (((outcome,), snapshot.departures.outcomes.get(outcome, 0)) for outcome in OUTCOMES)


def acknowledged(snapshot: Snapshot) -> Iterator[Sample]:
    """Each answer, as above."""
    return (((answer.value,), snapshot.departures.answers.get(answer, 0)) for answer in Given)
