"""How the events of a signal change what is known of a job: before it is sent, and what came of it. Pure."""

from __future__ import annotations

from dataclasses import replace

from gpuwarden.features.evacuation.policy import event_data
from gpuwarden.features.evacuation.policy.budget import FAILING_GPU
from gpuwarden.features.evacuation.policy.delivery import Process, Way
from gpuwarden.features.evacuation.policy.done import acknowledged_of
from gpuwarden.features.evacuation.policy.event_data import processes_of
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
    """Processes of `job` not to signal in this evacuation: signalled in it, or lately in another. A signal whose notice
    was called off before this one counts until the rank has acknowledged, and for CALLED_OFF_FOR.
    """
    own = evacuation.jobs.get(key)
    before = frozenset() if own is None else _counting(own, job, now)
    before = before.union(
        *(_counting_of(evacuation, *other, job, now) for other in _others(state, evacuation, key, now))
    )
    renamed = frozenset[Process]().union(
        *(
            _counting(known, job, now)
            if other.id == evacuation.id
            else _counting_of(evacuation, other, known, job, now)
            for other, known in _of_other_names(state, evacuation, key, now)
        )
    )
    return before | renamed & {(process.pid, process.started) for process in job.processes}


def ever_signalled(state: EvacuationState, evacuation: Evacuation, key: str, now: Stamp) -> frozenset[Process]:
    """Processes signalled for this end or, lately, for another, whether they may be signalled again or not: they may be
    saving. Those of jobs with other names than `key` are among them.
    """
    own = evacuation.jobs.get(key)
    known = [other for _, other in _others(state, evacuation, key, now)] + ([] if own is None else [own])
    known += [other for _, other in _of_other_names(state, evacuation, key, now)]
    return frozenset[Process]().union(*(job_state.signalled | job_state.earlier for job_state in known))


def _others(state: EvacuationState, own: Evacuation, job: str, now: Stamp) -> list[tuple[Evacuation, JobState]]:
    """Other evacuations in which the job was signalled recently enough to count, each with what it knows of the job,
    the newest last.
    """
    found = [
        (evacuation, known)
        for evacuation in state.evacuations.values()
        if evacuation.id != own.id
        and (known := evacuation.jobs.get(job)) is not None
        and known.signalled_at is not None
        if now.boottime - known.signalled_at.boottime <= SIGNALLED_WITHIN
    ]
    return sorted(found, key=lambda pair: pair[1].signalled_at.boottime if pair[1].signalled_at else 0.0)


def _of_other_names(state: EvacuationState, own: Evacuation, job: str, now: Stamp) -> list[tuple[Evacuation, JobState]]:
    """Return what is known of jobs with other names, in this evacuation or signalled recently enough in another: a
    process comes under another name when the topmost process of its tree ends.
    """
    return [
        (evacuation, known)
        for evacuation in state.evacuations.values()
        for name, known in evacuation.jobs.items()
        if name != job and known.signalled_at is not None
        if evacuation.id == own.id or now.boottime - known.signalled_at.boottime <= SIGNALLED_WITHIN
    ]


def _called_off(other: Evacuation, own: Evacuation) -> bool:
    """True if `other` was over before `own` began. An evacuation that replaces another without a gap announces the same
    end.
    """
    return other.over is not None and other.over.boottime < own.at.boottime


def _counting(known: JobState, job: LocalJob, now: Stamp) -> frozenset[Process]:
    """Processes that count as signalled in one evacuation: those signalled in it, and earlier ones that still count in
    it.
    """
    signalled = known.signalled | known.earlier
    return (
        signalled
        if _lately(known.called_off_signalled_at, now)
        else signalled - (known.called_off - _acknowledged(known, job))
    )


def _counting_of(own: Evacuation, other: Evacuation, known: JobState, job: LocalJob, now: Stamp) -> frozenset[Process]:
    """Processes that count as signalled because of another evacuation than `own`."""
    if not _called_off(other, own):
        return _counting(known, job, now)
    signalled = known.signalled | known.earlier
    return signalled - _acknowledged(known, job) if _lately(known.signalled_at, now) else frozenset()


def _lately(at: Stamp | None, now: Stamp) -> bool:
    return at is not None and now.boottime - at.boottime <= CALLED_OFF_FOR


def _acknowledged(known: JobState, job: LocalJob) -> frozenset[Process]:
    """Processes that have acknowledged, in their own name or by their rank number, which `job` shows."""
    acknowledged = known.acknowledged
    if acknowledged.all_ranks:
        return known.signalled | known.earlier
    signalled = known.signalled | known.earlier
    here = [process for process in job.processes if (process.pid, process.started) in signalled]
    answered = acknowledged_of(here, acknowledged)
    return acknowledged.processes.union((rank.pid, rank.started) for rank in answered)


def has_left_mark(state: EvacuationState, evacuation: Evacuation, key: str, restarts: int | None) -> bool:
    """True if the mark of this node stands for a signal to this run of the job that was sent for a notice that was
    called off.
    """
    own = evacuation.jobs.get(key)
    known = [] if own is None or own.called_off_signalled_at is None else [own]
    known += [
        other.jobs[key] for other in state.evacuations.values() if key in other.jobs and _called_off(other, evacuation)
    ]
    return any(
        job_state.way is Way.JOB_WIDE and (None in (restarts, job_state.restarts) or job_state.restarts == restarts)
        for job_state in known
    )


def _first(state: EvacuationState, evacuation: Evacuation, data: event_data.Signalling, now: Stamp) -> JobState:
    """The state of a job that enters this evacuation: all that is known of it, if another evacuation goes on or was
    replaced by this one.
    """
    others = _others(state, evacuation, data.job, now)
    base = JobState(restarts=data.restarts)
    before: frozenset[Process] = frozenset()
    called_off: frozenset[Process] = frozenset()
    signalled_at: Stamp | None = None
    for other, known in others:
        if None not in (known.restarts, base.restarts) and known.restarts != base.restarts:
            continue
        before |= known.signalled
        if _called_off(other, evacuation):
            called_off, signalled_at = called_off | known.signalled, known.signalled_at
        same_end = (other.kind == FAILING_GPU) == (evacuation.kind == FAILING_GPU)
        if same_end and (other.over is None or other.over.boottime >= evacuation.at.boottime):
            base = replace(known, restarts=known.restarts if base.restarts is None else base.restarts)
    for other, known in _of_other_names(state, evacuation, data.job, now):
        here = (known.signalled | known.earlier) & processes_of(data.remaining)
        before |= here
        if here and _called_off(other, evacuation):
            called_off, signalled_at = called_off | here, known.signalled_at
    if called_off := called_off - base.signalled:
        base = replace(base, called_off=at_most(base.called_off | called_off), called_off_signalled_at=signalled_at)
    return _remaining(replace(base, earlier=at_most(base.earlier | (before - base.signalled))), data)


def _remaining(known: JobState, data: event_data.Signalling) -> JobState:
    """Count processes signalled in an earlier evacuation as signalled in this one if they are still here. Those that
    ended in between cannot acknowledge, and are not waited for.
    """
    here = processes_of(data.remaining) & known.earlier
    in_steps = _in_steps(known, data) if here else known.in_steps
    return replace(
        known,
        signalled=at_most(known.signalled | here),
        earlier=known.earlier - here,
        returned=False,
        in_steps=in_steps,
        steps=_steps(known, data) if here else known.steps,
    )


def _in_steps(known: JobState, data: event_data.Signalling) -> bool:
    """True if all processes signalled so far, and those of the event, belong to Slurm's steps."""
    return data.in_steps and (known.in_steps or not known.signalled)


def _steps(known: JobState, data: event_data.Signalling) -> frozenset[str]:
    """Steps of the processes signalled so far, and of those of the event; no more of them than tell one from several."""
    return frozenset(sorted(known.steps | set(data.steps.split()))[:STEPS_MOST])


def signalling(state: EvacuationState, event: Event) -> EvacuationState:
    data = read(event_data.Signalling, event)
    if not data.notice or not data.job:
        return state
    evacuation = state.evacuations.get(data.notice) or Evacuation(id=data.notice, kind="", at=event.at)
    known = evacuation.jobs.get(data.job)
    if known is None and len(evacuation.jobs) >= JOBS_MOST:
        return state
    if data.kept:
        return with_evacuation(state, with_job(evacuation, data.job, _kept(known, event)))
    if known is None:
        known = _first(state, evacuation, data, event.at)
    elif data.restarts is not None and known.restarts is not None and data.restarts > known.restarts:
        earlier = at_most(known.earlier | known.signalled)
        known = JobState(earlier=earlier, signalled_at=known.signalled_at, restarts=data.restarts)  # it came back here
    else:
        known = _remaining(known, data)
    state = with_evacuation(state, with_job(evacuation, data.job, _signal_begun(known, data, event.at)))
    return with_job_everywhere(state, data.job, lambda known: _sending(known, data))


_THROUGH_SLURM = (Way.JOB_WIDE, Way.BATCH)


def _is_whole(known: JobState) -> bool:
    """True if the job was signalled as a whole, by this node or by another node."""
    return known.way in (*_THROUGH_SLURM, Way.WATCH) and known.result is not Sent.UNSENT


def _signal_begun(known: JobState, data: event_data.Signalling, now: Stamp) -> JobState:
    """Record a signal that begins. A job signalled as a whole is still shown as such after a late rank is signalled on
    this host.
    """
    processes = processes_of(data.processes)
    restarts = known.restarts if known.restarts is not None else data.restarts
    if not processes:
        known = replace(known, restarts=restarts, marking=known.marking or data.marking)
        return replace(known, text=known.text or data.text) if known.signalled else replace(known, text=data.text)
    changed = replace(
        known,
        signalled=at_most(known.signalled | processes),
        earlier=known.earlier - processes,
        called_off=known.called_off - processes,
        signalled_at=now,
        restarts=restarts,
        in_steps=_in_steps(known, data),
        steps=_steps(known, data),
    )
    if not data.again:  # who was sent it a second time is not sent it a third time, whatever came of that
        changed = _awaiting(changed, processes, data.way)
    if _is_whole(known):
        return changed
    return replace(
        changed,
        way=data.way,
        signal=data.signal,
        text=data.text,
        local_only=data.local_only,
        result=Sent.WATCHED if data.way is Way.WATCH else Sent.UNKNOWN,
    )


def _awaiting(known: JobState, processes: frozenset[Process], way: Way) -> JobState:
    if way in _THROUGH_SLURM:
        return replace(known, unsure=at_most(known.unsure | processes))
    return replace(known, unsure_here=at_most(known.unsure_here | processes)) if way is Way.LOCAL else known


def _sending(known: JobState, data: event_data.Signalling) -> JobState:
    """Record a signal that is being sent, in every evacuation that has the job. A second signal is never repeated, and
    a signal sent through Slurm means that the mark no longer stands for nothing sent.
    """
    processes = processes_of(data.processes)
    known = replace(known, undecided=known.undecided - processes) if processes & known.undecided else known
    return replace(known, marking=False) if processes and data.way in _THROUGH_SLURM and not data.again else known


def _kept(known: JobState | None, event: Event) -> JobState:
    """Restore a job from a checkpoint as it was. Processes for which one event has no room follow in events with
    `more`.
    """
    more = read(event_data.KeptProcesses, event)
    processes = processes_of(more.processes)
    if known is not None and more.earlier:
        return replace(known, earlier=at_most(known.earlier | processes))
    if known is not None and more.only:
        return _kept_only(known, more.only, processes)
    if known is not None and more.more:
        return replace(known, signalled=at_most(known.signalled | processes))
    data = read(event_data.KeptJob, event)
    return JobState(
        signalled=processes,
        signalled_at=data.signalled_at,
        way=data.way,
        signal=data.signal,
        text=data.text,
        local_only=data.local_only,
        result=data.result,
        count=data.count,
        wide=data.wide,
        restarts=data.restarts,
        requeued=data.requeued,
        requeued_at=data.requeued_at,
        requeued_text=data.requeued_text,
        named=data.named,
        returned=data.returned,
        in_steps=data.in_steps,
        steps=frozenset(data.steps.split()[:STEPS_MOST]),
        marking=data.marking,
        called_off_signalled_at=data.called_off_signalled_at,
    )


def _kept_only(known: JobState, only: str, processes: frozenset[Process]) -> JobState:
    """Restore, from a checkpoint, which processes have an unknown outcome or a notice that was called off."""
    return replace(
        known,
        unsure=at_most(known.unsure | processes) if only == "unsure" else known.unsure,
        unsure_here=at_most(known.unsure_here | processes) if only == "unsure_here" else known.unsure_here,
        undecided=at_most(known.undecided | processes) if only == "undecided" else known.undecided,
        called_off=at_most(known.called_off | processes) if only == "called_off" else known.called_off,
    )


# --- outcomes


def signalled(state: EvacuationState, event: Event) -> EvacuationState:
    """Fold SIGNALLED into the evacuation of the event, and into every other evacuation that waits for the outcome or
    has any of the processes it names.
    """
    data = read(event_data.Signalled, event)
    state = with_job_everywhere(state, data.job, lambda known: _came_of(known, data, named=True), notice=data.notice)
    unnamed = replace(data, count=0)
    return with_job_everywhere(state, data.job, lambda known: _came_of(known, unnamed, named=False))


def _came_of(known: JobState, data: event_data.Signalled, *, named: bool) -> JobState:
    """Apply the outcome of a signal to a job. If the job was signalled as a whole, the result for a rank signalled here
    besides does not change the result and the text that people see.
    """
    result, way = data.result, known.way if data.way is None else data.way
    through_slurm = way in _THROUGH_SLURM
    awaited = known.unsure if through_slurm else known.unsure_here
    processes = processes_of(data.processes) or awaited
    changed = _settled(known, processes, unsent=result is Sent.UNSENT and (through_slurm or data.due))
    if result is Sent.UNKNOWN:
        changed = replace(changed, undecided=at_most(known.undecided | processes & (known.signalled | known.earlier)))
    if not named and not processes & awaited:
        return changed
    if through_slurm and result is Sent.UNSENT:
        changed = replace(changed, wide=known.wide and data.due, marking=known.marking or data.due)
    if data.due and not through_slurm and known.result is Sent.SENT:
        return changed  # the signal to the job's other processes was sent
    text, count = data.text or known.text, known.count + data.count
    if through_slurm or data.again:
        return replace(changed, result=result, text=text, count=count)
    if known.unsure:
        return changed
    if _is_whole(known) and result is not Sent.UNKNOWN:
        return replace(changed, count=count)
    return replace(changed, result=result, text=text, count=count)


def _settled(known: JobState, processes: frozenset[Process], *, unsent: bool) -> JobState:
    """Stop waiting for the outcome. A process that was surely not sent anything counts as not signalled, now and
    earlier.
    """
    unsent_to = processes if unsent else frozenset[Process]()
    return replace(
        known,
        unsure=known.unsure - processes,
        unsure_here=known.unsure_here - processes,
        signalled=known.signalled - unsent_to,
        earlier=known.earlier - unsent_to,
        undecided=known.undecided - unsent_to,
    )
