"""The evacuation of jobs in the status document.

It holds no name of a user or a job, only the job's number in its scheduler, or the container's id.
"""

from __future__ import annotations

from typing import Any

from gpuwarden.features.evacuation.policy.model import Evacuation, JobState
from gpuwarden.features.evacuation.shown import evacuations
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden.publish.times import rfc3339, when

Document = dict[str, Any]


def document(snapshot: Snapshot) -> Document:
    """Return the key `jobs`. Why jobs cannot read their notice is among `errors`."""
    shown = evacuations(snapshot)
    return {
        "jobs": {
            "plan": list(shown.preview),
            "error": shown.error,
            "departures": [_evacuation(evacuation) for evacuation in shown.evacuations],
        }
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
        "ranks": len(job.signalled),
        "ranks_done": _ranks_done(job),
        "acknowledged_by": acknowledged.by,
        "acknowledged_at": when(acknowledged.at),
        "saved": acknowledged.saved,
        "all_ranks": acknowledged.all_ranks,
        "step": acknowledged.step,
        "requeue": job.requeued.value,
        "requeued_at": when(job.requeued_at),
        "requeue_text": job.requeued_text,
    }


def _ranks_done(job: JobState) -> int:
    """Return how many of the signalled ranks here have acknowledged or ended, as far as is known; never too many."""
    if job.acknowledged.all_ranks:
        return len(job.signalled)
    spoke = len(job.signalled & job.acknowledged.processes)
    return min(max(spoke, len(job.acknowledged.ranks)), len(job.signalled))
