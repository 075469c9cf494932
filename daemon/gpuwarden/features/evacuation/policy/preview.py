"""Describes what would be done in mode enforce, for mode observe, and what comes next. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from gpuwarden.features.evacuation.policy.approval import is_approved, refusal, rests_until
from gpuwarden.features.evacuation.policy.budget import FAILING_GPU, SHUTDOWN
from gpuwarden.features.evacuation.policy.delivery import ALIVE
from gpuwarden.features.evacuation.policy.done import has_other_nodes
from gpuwarden.features.evacuation.policy.model import Evacuation, EvacuationState, Requeued, Sent, jobs_of
from gpuwarden.features.evacuation.policy.plan import (
    NO_TIME,
    EvacuationSettings,
    Scene,
    Seen,
    delivery_now,
    left_here,
    never,
    scene_of,
    slurm_of,
    wants_requeue,
)
from gpuwarden.policy.model import Notice
from gpuwarden.policy.notices import id_of
from gpuwarden_collectors.cloud.facts import Approval
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.receivers.facts import LocalJob

JOBS_SHOWN = 64
"""Jobs that are listed; the others are counted."""


def preview(
    state: EvacuationState, notice: Notice, seen: Seen, settings: EvacuationSettings, now: Stamp, *, names: bool = True
) -> tuple[str, ...]:
    """Describe the plan: one line for when, one for each job, one for the final node state and one for the approval, if
    any is configured. `names`: the names of jobs are shown, too.
    """
    begun = state.evacuations.get(id_of(notice))
    evacuation = begun or Evacuation(id=id_of(notice), kind=notice.kind, at=notice.at, deadline=notice.deadline)
    scene = scene_of(state, evacuation, seen, settings, now)
    return (f"{notice.name}, {notice.kind}: {_when(scene)}", *_lines(scene, names=names), *_approval(scene, notice))


def ignored(notice: Notice) -> str:
    """Describe a failing GPU for which nothing is done."""
    return f"{notice.name}, {notice.kind}: no job is signalled: jobs.failing_gpu is ignore"


SUMMED_MOST = 8
"""Jobs that are named one by one in an answer."""


def summary(state: EvacuationState, previewed: tuple[str, ...], *, enforce: bool) -> str:
    """Summarise how many jobs were signalled, and why the others were not; in mode observe what was `previewed`."""
    if not enforce:
        lines = "; ".join(previewed[:SUMMED_MOST])
        return f"mode is observe: no job is signalled; in mode enforce: {lines}"
    jobs = jobs_of(state)
    signalled = sum(job.result in _REACHED for job in jobs.values())
    unsignalled = [f"{name}: {job.text}" for name, job in jobs.items() if job.result not in _REACHED]
    if not jobs:
        return "there is no job here to signal"
    text = "1 job is signalled to save" if signalled == 1 else f"{signalled or 'no'} jobs are signalled to save"
    if unsignalled:
        more = f"; and {len(unsignalled) - SUMMED_MOST} more" if len(unsignalled) > SUMMED_MOST else ""
        text += f"; not signalled: {'; '.join(unsignalled[:SUMMED_MOST])}{more}"
    return text


_REACHED = (Sent.SENT, Sent.WATCHED)


def _when(scene: Scene) -> str:
    if scene.evacuation.kind == FAILING_GPU:
        return "the jobs on this GPU are signalled"
    left = scene.times.end - scene.now.boottime
    text = f"this machine ends in {left:.0f} s" if left >= 0 else f"this machine was to end {-left:.0f} s ago"
    return f"{text}, assumed: the notice has no deadline" if scene.times.assumed else text


def _lines(scene: Scene, *, names: bool) -> Iterator[str]:
    if not scene.jobs:
        yield "there is no job here"
    for key, job in list(scene.jobs.items())[:JOBS_SHOWN]:
        called = f"{key} ({job.name})" if names and job.name else key
        yield f"{called}: {_signal_text(scene, key, job)}{_requeue(scene, key, job)}"
    if len(scene.jobs) > JOBS_SHOWN:
        yield f"and {len(scene.jobs) - JOBS_SHOWN} more jobs"
    yield from _final_node_state(scene)


def _signal_text(scene: Scene, key: str, job: LocalJob) -> str:
    job_state = scene.evacuation.jobs.get(key)
    return (
        f"signalled: {job_state.text}"
        if job_state is not None and job_state.signalled
        else delivery_now(scene, key, job).text
    )


def _requeue(scene: Scene, key: str, job: LocalJob) -> str:
    slurm, job_state = slurm_of(job, scene.seen), scene.evacuation.jobs.get(key)
    if slurm is None or slurm.state not in ALIVE or not wants_requeue(scene.evacuation.kind, scene.settings):
        return ""
    if job_state is not None and job_state.requeued is Requeued.DONE:
        return "; requeued"
    refused = job_state.requeued_text if job_state is not None and job_state.requeued is Requeued.REFUSED else ""
    if text := refused or never(slurm) or ("" if scene.times.requeue else NO_TIME):
        return f"; not requeued: {text}"
    left = max(scene.times.wait_until - scene.now.boottime, 0.0)
    subject = "its ranks on all its nodes are" if has_other_nodes(job, slurm) else "it is"
    return f"; requeued once {subject} done, in {left:.0f} s at the latest, and not before this node takes no work"


def _final_node_state(scene: Scene) -> Iterator[str]:
    if (
        not scene.settings.slurm
        or scene.settings.final_node_state == "none"
        or scene.evacuation.kind in (SHUTDOWN, FAILING_GPU)
    ):
        return
    at = scene.times.final_state_at
    if at is None:
        why = "the notice has no deadline" if scene.times.assumed else "no time is left for it"
        yield f"no final node state: {why}"
    else:
        final_state = scene.settings.final_node_state.replace("_", " ")
        yield f"final node state in {max(at - scene.now.boottime, 0.0):.0f} s: {final_state}"


def _approval(scene: Scene, notice: Notice) -> Iterator[str]:
    """Describe the early approval, only where the site asks for it and the source takes one."""
    if not scene.settings.approve or notice.approval is Approval.NONE:
        return
    approved = scene.evacuation.approved
    if approved is not None and is_approved(scene.evacuation):
        yield f"approved: {approved.text}"
    elif why := refusal(scene.state, scene.evacuation, notice.approval, scene.times, scene.now):
        yield f"not approved: {why}"
    elif left := left_here(scene):
        yield f"approved before its time once nothing is left to wait for: {left}"
    else:
        wait = max(rests_until(scene.evacuation) - scene.now.boottime, 0.0)
        tried = "" if approved is None else f"; attempt {approved.tries}: {approved.text}"
        yield f"approved before its time in {wait:.0f} s at the earliest: nothing is left to wait for{tried}"
