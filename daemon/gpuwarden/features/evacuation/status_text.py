"""The evacuation of jobs in `gpuwarden status`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuwarden.cli.text import clean, when

Document = dict[str, Any]


def sections(status: Document) -> Iterator[tuple[str, list[str]]]:
    """Yield what was done for jobs, and what is done next."""
    jobs = status.get("jobs") or {}
    yield "jobs on this machine", list(_job_lines(jobs))
    title = "jobs, if the mode were enforce" if status["mode"] == "observe" else "jobs: what comes next"
    yield title, list(map(clean, jobs.get("plan", ())))


def _job_lines(jobs: Document) -> Iterator[str]:
    if jobs.get("error"):
        yield f"jobs: {clean(jobs['error'])}"
    for evacuation in jobs.get("departures", ()):
        if evacuation["over"] and evacuation["jobs"]:
            yield f"{clean(evacuation['kind'])} of {when(evacuation['since'])}, ended {when(evacuation['over'])}:"
        yield from (f"job {clean(job['job'])}: {_job(job)}" for job in evacuation["jobs"])
        if final := evacuation.get("final_node_state"):
            yield f"final node state ({clean(final['what'])}): {clean(final['result'])}: {clean(final['text'])}"
        if approval := evacuation.get("approval"):
            attempts = f", attempt {approval['tries']}" if approval["tries"] > 1 else ""
            yield f"approval of the end{attempts}: {clean(approval['result'])}: {clean(approval['text'])}"


def _job(job: Document) -> str:
    delivered = (
        f"{clean(job['result'])}: {clean(job['text'])}" if job["result"] else f"not signalled: {clean(job['text'])}"
    )
    parts = [delivered]
    if job["acknowledged_by"]:
        parts.append(f"{_done(job)} (acknowledged by {clean(job['acknowledged_by'])})")
    if job["requeue"]:
        parts.append(f"requeue {clean(job['requeue'])}: {clean(job['requeue_text'])}")
    return "; ".join(parts)


def _done(job: Document) -> str:
    """Return how far the save is. A daemon of an older version reports no count of ranks."""
    step = f" step {job['step']}" if job["step"] is not None else ""
    ranks, done = job.get("ranks", 0), job.get("ranks_done", 0)
    if done < ranks:
        return f"{done} of {ranks} ranks here done{f', saved{step}' if job['saved'] else ''}"
    return f"saved{step}" if job["saved"] else "is done"
