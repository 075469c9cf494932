"""Plans the steps that are due now for the jobs of a machine that is about to end, or of a failing GPU. Pure.

The plan is not stored: it is computed again after each change, from the steps recorded so far and the latest scan, and
holds what is left to do. So it continues after a crash at any point, and follows a deadline that moves.

A job is signalled as soon as it is seen, and again for those of its processes that appear, or begin to catch their
signal, later: each process once. It is requeued once it is done (`done.py`) or its time is up (`budget.py`), but never
before the node was read back as taking no work: the job could return here. If the site has enabled it, the end is
approved early once nothing is left to wait for (`approval.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace

from gpuwarden.features.evacuation.policy.approval import pauses, refusal, rests_until
from gpuwarden.features.evacuation.policy.budget import FAILING_GPU, MARK_TAKES, Budget, budget
from gpuwarden.features.evacuation.policy.delivery import ALIVE, Delivery, DeliveryRules, Way, delivery
from gpuwarden.features.evacuation.policy.done import done, steps_decide
from gpuwarden.features.evacuation.policy.model import (
    JOBS_MOST,
    Evacuation,
    EvacuationState,
    JobState,
    Requeued,
    key_of,
)
from gpuwarden.features.evacuation.policy.signals import ever_signalled, has_left_mark, signalled_before
from gpuwarden.features.evacuation.policy.steps import (
    Approve,
    CheckSteps,
    NameNot,
    Plan,
    Requeue,
    SetFinalState,
    SignalJob,
)
from gpuwarden.features.evacuation.policy.unsettled import has_unused_mark, repeated
from gpuwarden.policy.model import Notice, Result
from gpuwarden.policy.notices import id_of
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.receivers.facts import Kind, LocalJob, Receiver
from gpuwarden_collectors.slurm.departing_facts import SlurmJob

SCAN_SOON = 0.2
"""Seconds until the next scan after a signal, as the next step may be due, and while the controller has not answered."""
SCAN_EVERY = 1.0
"""Seconds between two scans while the end is near: a rank may install its handler at any time."""
SCAN_LATER, NEAR = 5.0, 60.0
"""Seconds between two scans once the announced end has passed by NEAR seconds and the machine still runs."""
SCAN_FAILING = 60.0
"""Seconds between two scans on a node excluded for a failing GPU, maybe for days: each queries the controller."""
RETRY_AFTER = 2.0
"""Seconds between two attempts to requeue a job, or to set the final node state."""
BESIDE = (Way.JOB_WIDE, Way.BATCH, Way.WATCH)
"""Deliveries that trigger a rescan when they finish; do not rescan while one is in progress."""
USER_HZ = 100
"""Ticks per second of a process's start time in /proc, on every architecture that has GPUs (proc(5))."""
PENDING = "pending"
"""State of a job in Slurm's queue, which has no process here any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvacuationSettings:
    """The site's settings for the end of this machine, and for a failing GPU.

    `final_node_state` is none, down or power_down. With `requeue_for_gpu`, jobs are requeued for a failing GPU, too.
    `slurm` is true if a controller is configured. With `approve`, an announced end is approved early where its cloud
    allows that, once nothing is left to wait for. With `signal_again`, ranks of which it will never be known whether
    they got their signal get it once more, unless they have acknowledged.
    """

    delivery: DeliveryRules = field(default_factory=DeliveryRules)
    requeue: bool = True
    final_node_state: str = "none"
    requeue_for_gpu: bool = False
    slurm: bool = False
    approve: bool = False
    signal_again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The result of a successful scan. `jobs`: all of this host; a job that is not among them has ended. `concerned`:
    keys of the jobs that the failing GPU affects; None: all of them.

    `slurm`: the jobs that have this node, by number, if the `controller` answered; otherwise nothing is known of them.
    `unanswered`: seconds for which a query of it is open; None: none is. `trees` as in `delivery`. `unschedulable`:
    this node was read back as taking no work, for whatever reason; `closed`: at every scheduler, or there is none.
    `fresh`: the controller was queried for this very scan. `node`: Slurm's name of this node.
    """

    jobs: tuple[LocalJob, ...] = ()
    concerned: frozenset[str] | None = None
    slurm: Mapping[int, SlurmJob] = field(default_factory=dict)
    controller: bool = False
    unanswered: float | None = None
    trees: bool | None = None
    unschedulable: bool = False
    closed: bool = False
    fresh: bool = False
    node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The input of a plan. `jobs` by `key_of`."""

    state: EvacuationState
    evacuation: Evacuation
    jobs: Mapping[str, LocalJob]
    seen: Seen
    settings: EvacuationSettings
    times: Budget
    now: Stamp


def plan(
    state: EvacuationState,
    notice: Notice,
    seen: Seen,
    settings: EvacuationSettings,
    now: Stamp,
    *,
    is_busy: Callable[[str], bool] = lambda _: False,
) -> Plan:
    """Plan what is due for `notice`. Nothing is due before its DEPARTING was folded.

    `is_busy` is true for the key of a job for which a step is in progress that takes long; the next step for that job
    waits for its end.
    """
    evacuation = state.evacuations.get(id_of(notice))
    if evacuation is None or evacuation.over is not None:
        return Plan((), now.boottime + SCAN_EVERY)
    scene = scene_of(state, evacuation, seen, settings, now)
    signals = tuple(_signals(scene))
    addressed = frozenset(step.key for step in signals if step.delivery.receivers)
    steps = (*signals, *_after(scene, addressed), *_step_checks(scene), *_final_node_state(scene))
    signalled = not all(is_busy(step.key) or step.delivery.way in BESIDE for step in signals)
    waits = any(_waits(scene, key, job) for key, job in scene.jobs.items())
    again = _again(scene, soon=signalled or waits)
    if steps or not _is_to_be_approved(scene, notice):
        return Plan(steps, again, waits=waits)
    if settings.slurm and not seen.fresh:
        return Plan((), min(again, now.boottime + SCAN_SOON), ask_controller=True)
    return Plan((Approve(notice.id),), again)


def scene_of(
    state: EvacuationState, evacuation: Evacuation, seen: Seen, settings: EvacuationSettings, now: Stamp
) -> Scene:
    deadline = evacuation.deadline
    times = budget(evacuation.kind, evacuation.at.boottime, None if deadline is None else deadline.boottime)
    jobs = _jobs_of(evacuation, seen)
    return Scene(state=state, evacuation=evacuation, jobs=jobs, seen=seen, settings=settings, times=times, now=now)


def slurm_of(job: LocalJob, seen: Seen) -> SlurmJob | None:
    if job.kind is not Kind.SLURM or not (job.id.isascii() and job.id.isdigit()):
        return None
    return seen.slurm.get(int(job.id)) if seen.controller else None


def _jobs_of(evacuation: Evacuation, seen: Seen) -> dict[str, LocalJob]:
    """Return the jobs seen here, and those that the controller lists on this node although they have no process here.

    For a failing GPU only the jobs that are on it now, or were when they were signalled.
    """
    jobs = {key_of(job): job for job in seen.jobs}
    concerned = frozenset(jobs) if seen.concerned is None else seen.concerned
    for number, slurm in seen.slurm.items() if seen.controller else ():
        if slurm.state in ALIVE:
            job = LocalJob(kind=Kind.SLURM, id=str(number), uid=slurm.uid, name=slurm.name)
            jobs.setdefault(key_of(job), job)
    if evacuation.kind != FAILING_GPU:
        return jobs
    return {key: job for key, job in jobs.items() if key in concerned or key in evacuation.jobs}


# --- signals


def _signals(scene: Scene) -> Iterator[SignalJob]:
    room = JOBS_MOST - len(scene.evacuation.jobs)
    for key, job in scene.jobs.items():
        job_state, slurm = scene.evacuation.jobs.get(key), slurm_of(job, scene.seen)
        if (job_state is None and room <= 0) or _waits(scene, key, job):
            continue
        delivery = delivery_now(scene, key, job)
        is_new = job_state is None or job_state.returned
        if delivery.receivers or is_new or (job_state is not None and _came_back(job_state, slurm)):
            room -= job_state is None
            yield SignalJob(job, delivery, slurm, _remaining(scene, key, job, delivery) if is_new else ())
        elif scene.settings.signal_again and (
            again := repeated(scene.state, key, job, slurm, rules=scene.settings.delivery, now=scene.now)
        ):
            yield SignalJob(job, again, slurm, again=True)


def _waits(scene: Scene, key: str, job: LocalJob) -> bool:
    """Return True if the controller may still answer in time, so that all ranks of the job are signalled, not only
    those here.
    """
    unanswered = scene.seen.unanswered
    return (
        unanswered is not None
        and unanswered < scene.times.controller_within
        and job.kind is Kind.SLURM
        and job.elsewhere
        and key not in scene.evacuation.jobs
    )


def _remaining(scene: Scene, key: str, job: LocalJob, delivery: Delivery) -> tuple[Receiver, ...]:
    """Return the processes still here that were signalled for an end before and get no signal now: the evacuation waits
    for them, too.
    """
    signalled = ever_signalled(scene.state, scene.evacuation, key, scene.now) - {
        aim.process for aim in delivery.receivers
    }
    return tuple(process for process in job.processes if (process.pid, process.started) in signalled)


def delivery_now(scene: Scene, key: str, job: LocalJob) -> Delivery:
    """Choose how to signal the job now. It is signalled as a whole only in time, and if no such attempt has failed."""
    job_state, left = scene.evacuation.jobs.get(key), scene.times.end - scene.now.boottime
    in_time = scene.times.wide and (left >= MARK_TAKES or left <= 0.0)
    slurm = slurm_of(job, scene.seen)
    unused = slurm is not None and (
        has_unused_mark(scene.state, key, slurm.restarts)
        or has_left_mark(scene.state, scene.evacuation, key, slurm.restarts)
    )
    return delivery(
        replace(job, processes=tuple(p for p in job.processes if not _comes_after(p, scene, job_state, slurm))),
        slurm,
        scene.settings.delivery,
        now=scene.now.wall,
        trees=scene.seen.trees,
        signalled=signalled_before(scene.state, scene.evacuation, key, job, scene.now),
        wide=scene.seen.controller and in_time and (job_state is None or job_state.wide),
        unused_mark=scene.seen.node if unused else "",
    )


def _comes_after(process: Receiver, scene: Scene, job_state: JobState | None, slurm: SlurmJob | None) -> bool:
    """Return True for what a script starts after its signalled ranks have ended, such as rsync: programs that copy a
    checkpoint catch the signal, and end by it. A rank that replaces another opens a GPU within seconds.
    """
    if job_state is None or not job_state.signalled or _came_back(job_state, slurm):
        return False
    return process.started > scene.evacuation.at.boottime * USER_HZ and not process.gpu


def _came_back(job_state: JobState, slurm: SlurmJob | None) -> bool:
    """Return True if the job was requeued and runs here again."""
    if slurm is None or slurm.state not in ALIVE or job_state.restarts is None:
        return False
    return slurm.restarts > job_state.restarts


# --- after the signals


def _after(scene: Scene, addressed: frozenset[str]) -> Iterator[Requeue | NameNot]:
    """Yield requeue steps, or why a job is not requeued, for all jobs except those whose signal is sent by this same
    plan.
    """
    if not wants_requeue(scene.evacuation.kind, scene.settings) or not scene.seen.controller:
        return
    for key, job in scene.jobs.items():
        job_state, slurm = scene.evacuation.jobs.get(key), slurm_of(job, scene.seen)
        if job_state is None or slurm is None or slurm.state not in ALIVE or key in addressed:
            continue
        if job_state.requeued in (Requeued.DONE, Requeued.REFUSED) or _came_back(job_state, slurm):
            continue
        if text := never(slurm):
            yield NameNot(key, text, permanent=True)
        elif not scene.times.requeue:
            if not job_state.named:
                yield NameNot(key, NO_TIME, permanent=False)
        elif scene.seen.unschedulable and _rested(job_state, scene.now) and _may_end(job_state, job, scene):
            yield Requeue(key, slurm)


def _may_end(job_state: JobState, job: LocalJob, scene: Scene) -> bool:
    return scene.now.boottime >= scene.times.wait_until or done(job_state, job, slurm_of(job, scene.seen))


def _step_checks(scene: Scene) -> Iterator[CheckSteps]:
    """Yield checks whether the Slurm steps of jobs still run, only as often as the controller is queried for the jobs:
    it may serve many nodes.
    """
    if not scene.seen.fresh or scene.now.boottime >= scene.times.wait_until:
        return
    for key, job in scene.jobs.items():
        job_state, slurm = scene.evacuation.jobs.get(key), slurm_of(job, scene.seen)
        if job_state is None or slurm is None or slurm.state not in ALIVE or _came_back(job_state, slurm):
            continue
        if job_state.requeued is not Requeued.DONE and steps_decide(job_state, job, slurm):
            yield CheckSteps(key, slurm)


def awaits_jobs(state: EvacuationState, notice: Notice, seen: Seen, settings: EvacuationSettings, now: Stamp) -> bool:
    """Return True if a job with a process signalled for `notice` is not done yet."""
    evacuation = state.evacuations.get(id_of(notice))
    if evacuation is None:
        return False
    scene = scene_of(state, evacuation, seen, settings, now)
    signalled = (
        (job, job_state)
        for key, job in scene.jobs.items()
        if (job_state := evacuation.jobs.get(key)) and job_state.signalled
    )
    return not all(done(job_state, job, slurm_of(job, seen)) for job, job_state in signalled)


NO_TIME = "no time is left for that: Slurm requeues it itself once the node has not answered for SlurmdTimeout"


def wants_requeue(kind: str, settings: EvacuationSettings) -> bool:
    wanted = settings.requeue_for_gpu if kind == FAILING_GPU else settings.requeue
    return wanted and settings.slurm


def never(slurm: SlurmJob) -> str:
    """Return why a job cannot be requeued at all; empty if it can."""
    if not slurm.batch:
        return "it is not a batch job, and Slurm requeues no others; start it again elsewhere"
    if not slurm.requeue:
        return "it may not be requeued (--no-requeue, or JobRequeue=0): submit it again"
    return ""


def _rested(job_state: JobState, now: Stamp) -> bool:
    return job_state.requeued_at is None or now.boottime - job_state.requeued_at.boottime >= RETRY_AFTER


# --- the final node state


def _final_node_state(scene: Scene) -> Iterator[SetFinalState]:
    """Yield the step that sets the final node state, only if the notice has a deadline: the final state ends what still
    runs here.
    """
    at, final_state, now = scene.times.final_state_at, scene.settings.final_node_state, scene.now.boottime
    if at is None or now < at or final_state == "none" or not scene.settings.slurm:
        return
    written = scene.evacuation.final_node_state
    again = written is not None and written.result is Result.RETRY and now - written.at.boottime >= RETRY_AFTER
    if scene.seen.unschedulable and scene.seen.controller and (written is None or again):
        yield SetFinalState(final_state)


# --- early approval


def _is_to_be_approved(scene: Scene, notice: Notice) -> bool:
    evacuation, now = scene.evacuation, scene.now
    if not scene.settings.approve or refusal(scene.state, evacuation, notice.approval, scene.times, now):
        return False
    return not pauses(evacuation.approved, now) and now.boottime >= rests_until(evacuation) and not left_here(scene)


def left_here(scene: Scene) -> str:
    """Return the work that would be lost if the machine ended now, for people; empty if nothing is left to wait for."""
    if scene.settings.slurm and not scene.seen.controller:
        return "the controller's answer about the jobs here"
    if not scene.seen.closed:
        return "the exclusion of this node"
    left = [key for key, job in scene.jobs.items() if not _is_over(scene, key, job)]
    ending = (f"slurm/{number}" for number, job in scene.seen.slurm.items() if job.state not in (*ALIVE, PENDING))
    left = list(dict.fromkeys((*left, *ending)))
    return ", ".join(left[:8]) + (f" and {len(left) - 8} more" if len(left) > 8 else "")


def _is_over(scene: Scene, key: str, job: LocalJob) -> bool:
    """True if the job was signalled, or acknowledged without a signal, is done, and was requeued if that is possible."""
    job_state, slurm = scene.evacuation.jobs.get(key), slurm_of(job, scene.seen)
    if job_state is None or not done(job_state, job, slurm):
        return False
    if slurm is None or job_state.requeued is Requeued.REFUSED:
        return True
    return slurm.state in ALIVE and (not wants_requeue(scene.evacuation.kind, scene.settings) or bool(never(slurm)))


def _again(scene: Scene, *, soon: bool) -> float:
    times, now = scene.times, scene.now.boottime
    later = SCAN_FAILING if scene.evacuation.kind == FAILING_GPU else SCAN_LATER
    every = SCAN_EVERY if now < times.end + NEAR else later
    if soon:
        every = SCAN_SOON
    marks = [times.wait_until, times.final_state_at]
    return min([now + every, *(at for at in marks if at is not None and at > now)])
