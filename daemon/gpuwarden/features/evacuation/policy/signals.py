"""How the events of a signal change the state of a job: before it is sent, and by its outcome. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpuwarden.features.evacuation.policy import event_data
from gpuwarden.features.evacuation.policy.budget import FAILING_GPU
from gpuwarden.features.evacuation.policy.delivery import Process, Way
from gpuwarden.features.evacuation.policy.done import acknowledged_of
from gpuwarden.features.evacuation.policy.event_data import processes_of, same
from gpuwarden.features.evacuation.policy.model import (
    CALLED_OFF_FOR,
    JOBS_MOST,
    SIGNALLED_WITHIN,
    STEPS_MOST,
    Evacuation,
    EvacuationState,
    JobState,
    Sent,
    at_most,
    with_evacuation,
    with_job,
    with_job_everywhere,
)
from gpuwarden.health.event_data import read
from gpuwarden.health.model import Event
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.receivers.facts import LocalJob


def signalled_before(
    state: EvacuationState, evacuation: Evacuation, key: str, job: LocalJob, now: Stamp
) -> frozenset[Process]:
    """Return the processes of `job` not to signal in this evacuation: signalled in it, or recently in another. If the
    notice of a signal was called off before this one, it counts for CALLED_OFF_FOR, and only until the rank has
    acknowledged.
    """
    own = evacuation.jobs.get(key)
    of_job = [*_others(state, evacuation, key, now), *([] if own is None else [(evacuation, own)])]
    before, renamed = (
        frozenset[Process]().union(*(_counting_of(evacuation, *each, job, now) for each in pairs))
        for pairs in (of_job, _of_other_names(state, evacuation, key, now))
    )
    return before | renamed & {(process.pid, process.started) for process in job.processes}


def ever_signalled(state: EvacuationState, evacuation: Evacuation, key: str, now: Stamp) -> frozenset[Process]:
    """Return the processes signalled for this end or recently for another, whether or not they may be signalled again:
    they may be saving. Includes jobs with other names than `key`.
    """
    own = evacuation.jobs.get(key)
    job_states = [other for _, other in _others(state, evacuation, key, now)] + ([] if own is None else [own])
    job_states += [other for _, other in _of_other_names(state, evacuation, key, now)]
    return frozenset[Process]().union(*(job_state.signalled | job_state.earlier for job_state in job_states))


def _others(state: EvacuationState, own: Evacuation, job: str, now: Stamp) -> list[tuple[Evacuation, JobState]]:
    """Return other evacuations in which the job was signalled recently enough to count, each with its state of the job,
    the newest last.
    """
    others = [
        (evacuation, job_state)
        for evacuation in state.evacuations.values()
        if evacuation.id != own.id
        and (job_state := evacuation.jobs.get(job)) is not None
        and job_state.signalled_at is not None
        if now.boottime - job_state.signalled_at.boottime <= SIGNALLED_WITHIN
    ]
    return sorted(others, key=lambda pair: pair[1].signalled_at.boottime if pair[1].signalled_at else 0.0)


def _of_other_names(state: EvacuationState, own: Evacuation, job: str, now: Stamp) -> list[tuple[Evacuation, JobState]]:
    """Return the state of jobs with other names, in this evacuation or signalled recently enough in another: a process
    gets under another name when the topmost process of its tree ends.
    """
    return [
        (evacuation, job_state)
        for evacuation in state.evacuations.values()
        for name, job_state in evacuation.jobs.items()
        if name != job and job_state.signalled_at is not None
        if evacuation.id == own.id or now.boottime - job_state.signalled_at.boottime <= SIGNALLED_WITHIN
    ]


def _called_off(other: Evacuation, own: Evacuation) -> bool:
    """True if `other` was over before `own` began. An evacuation that replaces another without a gap announces the same
    end.
    """
    return other.over is not None and other.over.boottime < own.at.boottime


def _counting(job_state: JobState, job: LocalJob, now: Stamp) -> frozenset[Process]:
    """Return the processes that count as signalled in one evacuation: in it, or earlier and still counting."""
    signalled = job_state.signalled | job_state.earlier
    return (
        signalled
        if _lately(job_state.called_off_signalled_at, now)
        else signalled - (job_state.called_off - _acknowledged(job_state, job))
    )


def _counting_of(
    own: Evacuation, other: Evacuation, job_state: JobState, job: LocalJob, now: Stamp
) -> frozenset[Process]:
    """Return the processes that count as signalled to `own` because of `other`, which may be the same evacuation."""
    if not _called_off(other, own):
        return _counting(job_state, job, now)
    signalled = job_state.signalled | job_state.earlier
    return signalled - _acknowledged(job_state, job) if _lately(job_state.signalled_at, now) else frozenset()


def _lately(at: Stamp | None, now: Stamp) -> bool:
    return at is not None and now.boottime - at.boottime <= CALLED_OFF_FOR


def _acknowledged(job_state: JobState, job: LocalJob) -> frozenset[Process]:
    """Return the processes that have acknowledged, by themselves or by their rank number, which `job` shows."""
    acknowledged = job_state.acknowledged
    if acknowledged.all_ranks:
        return job_state.signalled | job_state.earlier
    signalled = job_state.signalled | job_state.earlier
    here = [process for process in job.processes if (process.pid, process.started) in signalled]
    answered = acknowledged_of(here, acknowledged)
    return acknowledged.processes.union((rank.pid, rank.started) for rank in answered)


def has_left_mark(state: EvacuationState, evacuation: Evacuation, key: str, restarts: int | None) -> bool:
    """Return True if this node's mark belongs to a signal to this run of the job that was sent for a notice called off
    since.
    """
    own = evacuation.jobs.get(key)
    job_states = [] if own is None or own.called_off_signalled_at is None else [own]
    job_states += [
        other.jobs[key] for other in state.evacuations.values() if key in other.jobs and _called_off(other, evacuation)
    ]
    return any(
        job_state.way is Way.JOB_WIDE and (None in (restarts, job_state.restarts) or job_state.restarts == restarts)
        for job_state in job_states
    )


def _first(state: EvacuationState, evacuation: Evacuation, data: event_data.Signalling, now: Stamp) -> JobState:
    """Return the state of a job that enters this evacuation: it is taken over from another one that is open or was
    replaced by this one.
    """
    others = _others(state, evacuation, data.job, now)
    base = JobState(restarts=data.restarts)
    before: frozenset[Process] = frozenset()
    called_off: frozenset[Process] = frozenset()
    signalled_at: Stamp | None = None
    for other, job_state in others:
        if None not in (job_state.restarts, base.restarts) and job_state.restarts != base.restarts:
            continue
        before |= job_state.signalled
        if _called_off(other, evacuation):
            called_off, signalled_at = called_off | job_state.signalled, job_state.signalled_at
        same_end = (other.kind == FAILING_GPU) == (evacuation.kind == FAILING_GPU)
        if same_end and (other.over is None or other.over.boottime >= evacuation.at.boottime):
            base = replace(job_state, restarts=job_state.restarts if base.restarts is None else base.restarts)
    for other, job_state in _of_other_names(state, evacuation, data.job, now):
        here = (job_state.signalled | job_state.earlier) & processes_of(data.remaining)
        before |= here
        if here and _called_off(other, evacuation):
            called_off, signalled_at = called_off | here, job_state.signalled_at
    if called_off := called_off - base.signalled:
        base = replace(base, called_off=at_most(base.called_off | called_off), called_off_signalled_at=signalled_at)
    return _remaining(replace(base, earlier=at_most(base.earlier | (before - base.signalled))), data)


def _remaining(job_state: JobState, data: event_data.Signalling) -> JobState:
    """Count processes signalled in an earlier evacuation as signalled in this one if they are still here. Those that
    ended in between cannot acknowledge, and are not waited for.
    """
    here = processes_of(data.remaining) & job_state.earlier
    in_steps = _in_steps(job_state, data) if here else job_state.in_steps
    return replace(
        job_state,
        signalled=at_most(job_state.signalled | here),
        earlier=job_state.earlier - here,
        returned=False,
        in_steps=in_steps,
        steps=_steps(job_state, data) if here else job_state.steps,
    )


def _in_steps(job_state: JobState, data: event_data.Signalling) -> bool:
    """True if all processes signalled so far, and those of the event, belong to Slurm's steps."""
    return data.in_steps and (job_state.in_steps or not job_state.signalled)


def _steps(job_state: JobState, data: event_data.Signalling) -> frozenset[str]:
    """Return the steps of the processes signalled so far and of those of the event: at most STEPS_MOST of them."""
    return frozenset(sorted(job_state.steps | set(data.steps.split()))[:STEPS_MOST])


def signalling(state: EvacuationState, event: Event) -> EvacuationState:
    data = read(event_data.Signalling, event)
    if not data.notice or not data.job:
        return state
    evacuation = state.evacuations.get(data.notice) or Evacuation(id=data.notice, kind="", at=event.at)
    job_state = evacuation.jobs.get(data.job)
    if job_state is None and len(evacuation.jobs) >= JOBS_MOST:
        return state
    if data.kept:
        return with_evacuation(state, with_job(evacuation, data.job, _kept(job_state, event)))
    if job_state is None:
        job_state = _first(state, evacuation, data, event.at)
    elif data.restarts is not None and job_state.restarts is not None and data.restarts > job_state.restarts:
        earlier = at_most(job_state.earlier | job_state.signalled)
        job_state = JobState(
            earlier=earlier, signalled_at=job_state.signalled_at, restarts=data.restarts
        )  # it came back here
    else:
        job_state = _remaining(job_state, data)
    state = with_evacuation(state, with_job(evacuation, data.job, _signal_begun(job_state, data, event.at)))
    return with_job_everywhere(state, data.job, lambda job_state: _sending(job_state, data))


_THROUGH_SLURM = (Way.JOB_WIDE, Way.BATCH)


def _is_whole(job_state: JobState) -> bool:
    """True if the job was signalled as a whole, by this node or by another node."""
    return job_state.way in (*_THROUGH_SLURM, Way.WATCH) and job_state.result is not Sent.UNSENT


def _signal_begun(job_state: JobState, data: event_data.Signalling, now: Stamp) -> JobState:
    """Record a signal that begins. A job signalled as a whole is still shown as such after a late rank is signalled on
    this host.
    """
    processes = processes_of(data.processes)
    restarts = job_state.restarts if job_state.restarts is not None else data.restarts
    if not processes:
        job_state = replace(job_state, restarts=restarts, marking=job_state.marking or data.marking)
        return (
            replace(job_state, text=job_state.text or data.text)
            if job_state.signalled
            else replace(job_state, text=data.text)
        )
    changed = replace(
        job_state,
        signalled=at_most(job_state.signalled | processes),
        earlier=job_state.earlier - processes,
        called_off=job_state.called_off - processes,
        signalled_at=now,
        restarts=restarts,
        in_steps=_in_steps(job_state, data),
        steps=_steps(job_state, data),
    )
    if not data.again:  # a second signal is never repeated, whatever its outcome
        changed = _awaiting(changed, processes, data.way)
    if _is_whole(job_state):
        return changed
    return replace(
        changed,
        way=data.way,
        signal=data.signal,
        text=data.text,
        local_only=data.local_only,
        result=Sent.WATCHED if data.way is Way.WATCH else Sent.UNKNOWN,
    )


def _awaiting(job_state: JobState, processes: frozenset[Process], way: Way) -> JobState:
    if way in _THROUGH_SLURM:
        return replace(job_state, unsure=at_most(job_state.unsure | processes))
    return replace(job_state, unsure_here=at_most(job_state.unsure_here | processes)) if way is Way.LOCAL else job_state


def _sending(job_state: JobState, data: event_data.Signalling) -> JobState:
    """Record a signal that is being sent, in every evacuation that has the job. A second signal is never repeated, and
    after a signal through Slurm the mark proves one.
    """
    processes = processes_of(data.processes)
    job_state = (
        replace(job_state, undecided=job_state.undecided - processes) if processes & job_state.undecided else job_state
    )
    return (
        replace(job_state, marking=False) if processes and data.way in _THROUGH_SLURM and not data.again else job_state
    )


def _kept(job_state: JobState | None, event: Event) -> JobState:
    """Restore a job from a checkpoint as it was. Processes for which one event has no room follow in events with
    `more`.
    """
    more = read(event_data.KeptProcesses, event)
    processes = processes_of(more.processes)
    if job_state is not None and more.earlier:
        return replace(job_state, earlier=at_most(job_state.earlier | processes))
    if job_state is not None and more.only:
        return _kept_only(job_state, more.only, processes)
    if job_state is not None and more.more:
        return replace(job_state, signalled=at_most(job_state.signalled | processes))
    data = read(event_data.KeptJob, event)
    steps = frozenset(data.steps.split()[:STEPS_MOST])
    return JobState(**same(data, JobState) | {"signalled": processes, "steps": steps})


def _kept_only(job_state: JobState, only: str, processes: frozenset[Process]) -> JobState:
    """Restore, from a checkpoint, which processes have an unknown outcome or a notice that was called off."""
    if only not in event_data.ONLY:
        return job_state
    changed: dict[str, Any] = {only: at_most(getattr(job_state, only) | processes)}
    return replace(job_state, **changed)


# --- outcomes


def signalled(state: EvacuationState, event: Event) -> EvacuationState:
    """Fold SIGNALLED into the evacuation of the event, and into every other evacuation that waits for the outcome or
    has any of the processes it names.
    """
    data = read(event_data.Signalled, event)
    state = with_job_everywhere(
        state, data.job, lambda job_state: _came_of(job_state, data, named=True), notice=data.notice
    )
    unnamed = replace(data, count=0)
    return with_job_everywhere(state, data.job, lambda job_state: _came_of(job_state, unnamed, named=False))


def _came_of(job_state: JobState, data: event_data.Signalled, *, named: bool) -> JobState:
    """Apply the outcome of a signal to a job. If the job was signalled as a whole, the result for a rank signalled here
    besides does not change the result and the text that people see.
    """
    result, way = data.result, job_state.way if data.way is None else data.way
    through_slurm = way in _THROUGH_SLURM
    awaited = job_state.unsure if through_slurm else job_state.unsure_here
    processes = processes_of(data.processes) or awaited
    changed = _settled(job_state, processes, unsent=result is Sent.UNSENT and (through_slurm or data.due))
    if result is Sent.UNKNOWN:
        changed = replace(
            changed, undecided=at_most(job_state.undecided | processes & (job_state.signalled | job_state.earlier))
        )
    if not named and not processes & awaited:
        return changed
    if through_slurm and result is Sent.UNSENT:
        changed = replace(changed, wide=job_state.wide and data.due, marking=job_state.marking or data.due)
    if data.due and not through_slurm and job_state.result is Sent.SENT:
        return changed  # the signal to the job's other processes was sent
    text, count = data.text or job_state.text, job_state.count + data.count
    if through_slurm or data.again:
        return replace(changed, result=result, text=text, count=count)
    if job_state.unsure:
        return changed
    if _is_whole(job_state) and result is not Sent.UNKNOWN:
        return replace(changed, count=count)
    return replace(changed, result=result, text=text, count=count)


def _settled(job_state: JobState, processes: frozenset[Process], *, unsent: bool) -> JobState:
    """Stop waiting for the outcome. A process that was surely not sent anything counts as not signalled, now and
    earlier.
    """
    unsent_to = processes if unsent else frozenset[Process]()
    return replace(
        job_state,
        unsure=job_state.unsure - processes,
        unsure_here=job_state.unsure_here - processes,
        signalled=job_state.signalled - unsent_to,
        earlier=job_state.earlier - unsent_to,
        undecided=job_state.undecided - unsent_to,
    )
