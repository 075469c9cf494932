r"""The state of all evacuations, which changes only by events. Pure.

    DEPARTING --> an evacuation: a notice that is acted on, or a GPU that fails
       SIGNALLING without processes, marking --> the mark of the job is being set, and nobody is signalled yet
       SIGNALLING (right before anything is sent) --> the processes count as signalled, whatever happens then
          SIGNALLED unsent (a mark could not be set) --> they do not, and are signalled on this host
          SIGNALLED unsent, due (nothing was sent) --> they do not, and are signalled as if there had been no SIGNALLING
          SIGNALLED unknown --> they do; the site decides whether it is sent once more
       SAVED ... REQUEUED or NOT_REQUEUED ... FINAL_NODE_STATE ... APPROVING, APPROVED
    DEPARTED --> over: withdrawn, called off, or the GPU fails no more

No process is signalled twice for one end, though several sources may announce it: a process signalled for one notice
gets no signal for another within SIGNALLED_WITHIN, and an evacuation that replaces another without a gap takes over the
state of its jobs. After a notice was called off, its signals count for CALLED_OFF_FOR, and only until the process has
acknowledged: see signals.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from gpuwarden.features.evacuation.policy import event_data
from gpuwarden.features.evacuation.policy.delivery import SIGNALLED_MOST, Process
from gpuwarden.features.evacuation.policy.event_data import processes_of, ranks_of
from gpuwarden.features.evacuation.policy.model import (
    BY_EXIT,
    BY_STEP,
    SIGNALLED_WITHIN,
    Acknowledged,
    Approved,
    Evacuation,
    EvacuationState,
    FinalNodeState,
    Given,
    JobState,
    Requeued,
    at_most,
    given,
    open_evacuations,
    with_evacuation,
    with_job_everywhere,
)
from gpuwarden.features.evacuation.policy.signals import signalled, signalling
from gpuwarden.health.event_data import read
from gpuwarden.health.model import Event, EventKind
from gpuwarden.policy.model import Result
from gpuwarden_collectors.facts import Stamp


def fold(state: EvacuationState, event: Event) -> EvacuationState:
    """Return the state after `event`; events of kinds that do not concern an evacuation leave it as it is."""
    if event.kind in (EventKind.BOOT, EventKind.MACHINE_CHANGED):
        stays = event.kind == EventKind.BOOT and event.boot_id == state.boot_id
        answers = state.answers if event.kind == EventKind.BOOT else {}
        return state if stays else EvacuationState(boot_id=event.boot_id, answers=answers)
    change = _CHANGES.get(event.kind)
    if change is None or (state.boot_id and event.boot_id != state.boot_id):
        return state
    return change(state, event)


# --- evacuations


def _departing(state: EvacuationState, event: Event) -> EvacuationState:
    """Begin an evacuation. A known one gets a new deadline, or its notice came back; one long over starts over."""
    data = read(event_data.Departing, event)
    if not data.notice:
        return state
    evacuation = state.evacuations.get(data.notice)
    if evacuation is None or (
        evacuation.over is not None and event.at.boottime - evacuation.over.boottime > SIGNALLED_WITHIN
    ):
        new = Evacuation(id=data.notice, kind=data.kind, at=event.at, deadline=data.deadline)
        return with_evacuation(state, new)
    jobs = (
        evacuation.jobs if evacuation.over is None else {name: _returned(job) for name, job in evacuation.jobs.items()}
    )
    return with_evacuation(state, replace(evacuation, kind=data.kind, deadline=data.deadline, over=None, jobs=jobs))


def _returned(job_state: JobState) -> JobState:
    """Discard the job's answers from before the notice was withdrawn, since the job continued. Processes that answered
    may be signalled again.
    """
    answered = job_state.acknowledged
    signalled = job_state.earlier | job_state.signalled
    left = frozenset[Process]() if answered.all_ranks else signalled - answered.processes
    undecided = job_state.undecided if answered.at is None else frozenset[Process]()
    return replace(
        job_state,
        signalled=frozenset(),
        earlier=at_most(left),
        called_off=at_most(left),
        called_off_signalled_at=job_state.signalled_at,
        returned=True,
        acknowledged=Acknowledged(),
        undecided=undecided,
    )


def _departed(evacuation: Evacuation, _: event_data.Departed, now: Stamp) -> Evacuation:
    return replace(evacuation, over=now)


def _final_node_state(evacuation: Evacuation, data: event_data.FinalNodeState, now: Stamp) -> Evacuation:
    return replace(
        evacuation, final_node_state=FinalNodeState(what=data.what, result=data.result, text=data.text, at=now)
    )


def _approving(evacuation: Evacuation, _: event_data.Approving, now: Stamp) -> Evacuation:
    tries = 1 + (0 if evacuation.approved is None else evacuation.approved.tries)
    text = "its outcome is unknown"
    return replace(evacuation, approved=Approved(tries=tries, result=Result.RETRY, text=text, at=now))


def _approved(evacuation: Evacuation, data: event_data.Approved, now: Stamp) -> Evacuation:
    tries = max(data.tries, 0 if evacuation.approved is None else evacuation.approved.tries)
    return replace(evacuation, approved=Approved(tries=tries, result=data.result, text=data.text, at=now))


# --- outcomes


def _saved(state: EvacuationState, event: Event) -> EvacuationState:
    data = read(event_data.Saved, event)
    if data.kept:
        return _kept(state, event)
    after = _acknowledged(state, event)
    new_answers = _given(after, data.job) - _given(state, data.job)
    return replace(after, answers={**state.answers, **{job: state.answers.get(job, 0) + 1 for job in new_answers}})


def _given(state: EvacuationState, job: str) -> frozenset[Given]:
    """Return the answers that the job has given, as far as the open evacuations show."""
    return frozenset().union(
        *(given(evacuation.jobs[job]) for evacuation in open_evacuations(state).values() if job in evacuation.jobs)
    )


def _answered(state: EvacuationState, event: Event) -> EvacuationState:
    data = read(event_data.Answered, event)
    counts = {Given.SAVED: data.saved, Given.UNSAVED: data.unsaved, Given.ENDED: data.ended}
    return replace(state, answers={job: count for job, count in counts.items() if count})


def _acknowledging(job_state: JobState, data: event_data.Saved, now: Stamp) -> JobState:
    ranks = frozenset[int]() if data.rank is None else frozenset({data.rank})
    processes = frozenset[Process]()
    if data.pid is not None:
        same_pid = frozenset(process for process in job_state.signalled if process[0] == data.pid)
        processes = (data.started is None and same_pid) or frozenset({(data.pid, data.started or 0)})
        if processes & (job_state.signalled | job_state.earlier):
            ranks = frozenset()  # identified by PID: other processes may have the same rank
    unsaved = data.saved is False and data.by not in (BY_EXIT, BY_STEP)
    return _also(job_state, data, ranks, processes, unsaved=unsaved, now=now)


def _acknowledged_before(job_state: JobState, data: event_data.KeptSaved, now: Stamp) -> JobState:
    """Restore the acknowledgements of a job from a checkpoint."""
    return _also(job_state, data, ranks_of(data.ranks), processes_of(data.processes), unsaved=data.unsaved, now=now)


def _also(
    job_state: JobState,
    data: event_data.Saved | event_data.KeptSaved,
    ranks: frozenset[int],
    processes: frozenset[Process],
    *,
    unsaved: bool,
    now: Stamp,
) -> JobState:
    before = job_state.acknowledged
    saved = data.saved is True
    ends = before.saved and not saved  # the end of a process that has saved
    ranks, processes = before.ranks | ranks, before.processes | processes
    return replace(
        job_state,
        acknowledged=Acknowledged(
            ranks=ranks if len(ranks) <= SIGNALLED_MOST else before.ranks,
            processes=processes if len(processes) <= 2 * SIGNALLED_MOST else before.processes,
            all_ranks=before.all_ranks or data.all_ranks,
            saved=before.saved or saved,
            unsaved=before.unsaved or unsaved,
            by=before.by if ends else data.by,
            step=before.step if data.step is None else max(data.step, before.step or 0),
            at=(before.at or now) if ends else now,
        ),
    )


def _requeued(job_state: JobState, data: event_data.Requeued, now: Stamp) -> JobState:
    restarts = job_state.restarts if job_state.restarts is not None else data.restarts
    return replace(job_state, requeued=Requeued.DONE, requeued_at=now, requeued_text=data.text, restarts=restarts)


def _not_requeued(job_state: JobState, data: event_data.NotRequeued, now: Stamp) -> JobState:
    """Record why a job was not requeued. A job that was requeued once stays so: another node may have read already that
    it is pending.
    """
    if job_state.requeued is Requeued.DONE:
        return job_state
    return replace(
        job_state,
        requeued=Requeued.REFUSED if data.permanent else Requeued.RETRY,
        requeued_at=now,
        requeued_text=data.text,
        named=job_state.named or data.permanent or data.named,
    )


OfNotice = TypeVar("OfNotice", bound=event_data.OfNotice)
OfJob = TypeVar("OfJob", bound=event_data.OfJob)
Change = Callable[[EvacuationState, Event], EvacuationState]


def _of_its_evacuation(kind: type[OfNotice], change: Callable[[Evacuation, OfNotice, Stamp], Evacuation]) -> Change:
    """Turn `change` into a change of the state: it applies to the evacuation that the event names, if that is known."""

    def changed(state: EvacuationState, event: Event) -> EvacuationState:
        data = read(kind, event)
        evacuation = state.evacuations.get(data.notice)
        return state if evacuation is None else with_evacuation(state, change(evacuation, data, event.at))

    return changed


def _of_its_job(kind: type[OfJob], change: Callable[[JobState, OfJob, Stamp], JobState]) -> Change:
    """Turn `change` into a change of the state: it applies to the job in every evacuation that has it, or only in the
    one that the event names.
    """

    def changed(state: EvacuationState, event: Event) -> EvacuationState:
        data = read(kind, event)
        return with_job_everywhere(
            state, data.job, lambda job_state: change(job_state, data, event.at), notice=data.notice
        )

    return changed


_acknowledged = _of_its_job(event_data.Saved, _acknowledging)
_kept = _of_its_job(event_data.KeptSaved, _acknowledged_before)
_CHANGES: dict[str, Change] = {
    EventKind.DEPARTING: _departing,
    EventKind.SIGNALLING: signalling,
    EventKind.SIGNALLED: signalled,
    EventKind.SAVED: _saved,
    EventKind.REQUEUED: _of_its_job(event_data.Requeued, _requeued),
    EventKind.NOT_REQUEUED: _of_its_job(event_data.NotRequeued, _not_requeued),
    EventKind.FINAL_NODE_STATE: _of_its_evacuation(event_data.FinalNodeState, _final_node_state),
    EventKind.APPROVING: _of_its_evacuation(event_data.Approving, _approving),
    EventKind.APPROVED: _of_its_evacuation(event_data.Approved, _approved),
    EventKind.ANSWERED: _answered,
    EventKind.DEPARTED: _of_its_evacuation(event_data.Departed, _departed),
}
