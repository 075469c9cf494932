r"""What was done for jobs whose machine ends, and the one way in which it changes: by events. Pure.

    DEPARTING --> an evacuation: a notice that is acted on, or a GPU that fails
       SIGNALLING without processes, marking --> the mark of the job is being set, and nobody is signalled yet
       SIGNALLING (right before anything is sent) --> the processes count as signalled, whatever happens then
          SIGNALLED unsent (a mark could not be set) --> they do not, and are signalled on this host
          SIGNALLED unsent, due (nothing was sent) --> they do not, and are signalled as if there had been no SIGNALLING
          SIGNALLED unknown --> they do, and it is for the site to say whether they get it once more
       SAVED ... REQUEUED or NOT_REQUEUED ... LAST_WORDS ... APPROVING, APPROVED
    DEPARTED --> over: withdrawn, called off, or the GPU fails no more

No process is signalled twice for one death, though several sources may announce it: one signalled for one notice within
SIGNALLED_WITHIN is not signalled for another, and what is known of a job goes over from an evacuation to the one that takes its place without a gap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpuwarden.health.model import Event, EventKind
from gpuwarden.policy.evacuation.delivery import SIGNALLED_MOST, Process
from gpuwarden.policy.evacuation.event_fields import (
    enum_in,
    is_number,
    is_true,
    processes_in,
    stamp_in,
    text_in,
    whole_in,
)
from gpuwarden.policy.evacuation.model import (
    BY_EXIT,
    BY_STEP,
    NAME_MOST,
    SIGNALLED_WITHIN,
    Acknowledged,
    Approved,
    Evacuation,
    EvacuationState,
    Given,
    JobState,
    Requeued,
    Spoken,
    at_most,
    given,
    open_evacuations,
    with_evacuation,
    with_job_everywhere,
)
from gpuwarden.policy.evacuation.signals import signalled, signalling
from gpuwarden.policy.model import Result


def fold(state: EvacuationState, event: Event) -> EvacuationState:
    """The state after `event`; events of kinds that do not concern an evacuation leave it as it is."""
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
    """The same one again has another end, or has come back; if it was over for long, it begins again."""
    name = text_in(event, "notice", NAME_MOST)
    if not name:
        return state
    kind, deadline = text_in(event, "kind", NAME_MOST), stamp_in(event, "deadline")
    known = state.evacuations.get(name)
    if known is None or (known.over is not None and event.at.boottime - known.over.boottime > SIGNALLED_WITHIN):
        return with_evacuation(state, Evacuation(id=name, kind=kind, at=event.at, deadline=deadline))
    jobs = known.jobs if known.over is None else {name: _returned(job) for name, job in known.jobs.items()}
    return with_evacuation(state, replace(known, kind=kind, deadline=deadline, over=None, jobs=jobs))


def _returned(known: JobState) -> JobState:
    """What it answered before the notice was withdrawn counts no more: it went on since."""
    earlier = at_most(known.earlier | known.signalled)
    undecided = known.undecided if known.acknowledged.at is None else frozenset[Process]()
    return replace(
        known, signalled=frozenset(), earlier=earlier, returned=True, acknowledged=Acknowledged(), undecided=undecided
    )


def _departed(known: Evacuation, event: Event) -> Evacuation:
    return replace(known, over=event.at)


def _last_words(known: Evacuation, event: Event) -> Evacuation:
    result = enum_in(Result, event, "result", Result.RETRY)
    spoken = Spoken(what=text_in(event, "what", NAME_MOST), result=result, text=text_in(event, "text"), at=event.at)
    return replace(known, last_words=spoken)


def _approving(known: Evacuation, event: Event) -> Evacuation:
    tries = 1 + (0 if known.approved is None else known.approved.tries)
    text = "what came of it is not known"
    return replace(known, approved=Approved(tries=tries, result=Result.RETRY, text=text, at=event.at))


def _approved(known: Evacuation, event: Event) -> Evacuation:
    before = 0 if known.approved is None else known.approved.tries
    result, tries = enum_in(Result, event, "result", Result.RETRY), max(before, whole_in(event, "tries") or 0)
    return replace(known, approved=Approved(tries=tries, result=result, text=text_in(event, "text"), at=event.at))


# --- what came of it


def _in_its_departures(
    state: EvacuationState, event: Event, change: Callable[[JobState, Event], JobState]
) -> EvacuationState:
    """In every evacuation that has the job, or only in that which the event names."""
    job, notice = text_in(event, "job", NAME_MOST), text_in(event, "notice", NAME_MOST)
    return with_job_everywhere(state, job, lambda known: change(known, event), notice=notice)


def _saved(state: EvacuationState, event: Event) -> EvacuationState:
    after = _in_its_departures(state, event, _acknowledging)
    if is_true(event, "kept"):
        return after
    news = _given(after, event) - _given(state, event)
    return replace(after, answers={**state.answers, **{one: state.answers.get(one, 0) + 1 for one in news}})


def _given(state: EvacuationState, event: Event) -> frozenset[Given]:
    """By its job, as far as the evacuations that go on know."""
    job = text_in(event, "job", NAME_MOST)
    return frozenset().union(*(given(one.jobs[job]) for one in open_evacuations(state).values() if job in one.jobs))


def _answered(state: EvacuationState, event: Event) -> EvacuationState:
    counts = {one: count for one in Given if (count := whole_in(event, one.value))}
    return replace(state, answers=counts)


def _acknowledging(known: JobState, event: Event) -> JobState:
    before = known.acknowledged
    ranks, processes = before.ranks | _ranks(event), before.processes | processes_in(event)
    rank, pid = whole_in(event, "rank"), whole_in(event, "pid")
    if rank is not None:
        ranks |= {rank}
    if pid is not None:
        started = whole_in(event, "started")
        named = (
            {(pid, started)} if started is not None else {process for process in known.signalled if process[0] == pid}
        )
        processes |= named or {(pid, 0)}
    step = whole_in(event, "step")
    by, at = text_in(event, "by", NAME_MOST), event.at
    unsaved = event.data.get("saved") is False and by not in (BY_EXIT, BY_STEP) and not is_true(event, "kept")
    if before.saved and not is_true(event, "saved"):  # who saved ends at last, too
        by, at = before.by, before.at or event.at
    return replace(
        known,
        acknowledged=Acknowledged(
            ranks=ranks if len(ranks) <= SIGNALLED_MOST else before.ranks,
            processes=processes if len(processes) <= 2 * SIGNALLED_MOST else before.processes,
            whole=before.whole or is_true(event, "whole"), all_ranks=before.all_ranks or is_true(event, "all_ranks"), saved=before.saved or is_true(event, "saved"),
            unsaved=before.unsaved or unsaved or is_true(event, "unsaved"), by=by, step=before.step if step is None else max(step, before.step or 0), at=at,
        ),
    )  # fmt: skip


def _ranks(event: Event) -> frozenset[int]:
    value = event.data.get("ranks", "")
    return frozenset(int(word) for word in value.split() if is_number(word)) if isinstance(value, str) else frozenset()


def _requeued(known: JobState, event: Event) -> JobState:
    restarts = known.restarts if known.restarts is not None else whole_in(event, "restarts")
    return replace(
        known, requeued=Requeued.DONE, requeued_at=event.at, requeued_text=text_in(event, "text"), restarts=restarts
    )


def _not_requeued(known: JobState, event: Event) -> JobState:
    """What was requeued once stays so: another node may have read that it is pending already."""
    if known.requeued is Requeued.DONE:
        return known
    permanent = is_true(event, "permanent")
    return replace(
        known, requeued=Requeued.REFUSED if permanent else Requeued.RETRY, requeued_at=event.at,
        requeued_text=text_in(event, "text"), named=known.named or permanent or is_true(event, "named"),
    )  # fmt: skip


Change = Callable[[EvacuationState, Event], EvacuationState]


def _of_its_evacuation(change: Callable[[Evacuation, Event], Evacuation]) -> Change:
    """Of that which the event names, if it is known."""

    def changed(state: EvacuationState, event: Event) -> EvacuationState:
        known = state.evacuations.get(text_in(event, "notice", NAME_MOST))
        return state if known is None else with_evacuation(state, change(known, event))

    return changed


def _of_its_job(change: Callable[[JobState, Event], JobState]) -> Change:
    return lambda state, event: _in_its_departures(state, event, change)


_CHANGES: dict[str, Change] = {
    EventKind.DEPARTING: _departing,
    EventKind.SIGNALLING: signalling,
    EventKind.SIGNALLED: signalled,
    EventKind.SAVED: _saved,
    EventKind.REQUEUED: _of_its_job(_requeued),
    EventKind.NOT_REQUEUED: _of_its_job(_not_requeued),
    EventKind.LAST_WORDS: _of_its_evacuation(_last_words),
    EventKind.APPROVING: _of_its_evacuation(_approving),
    EventKind.APPROVED: _of_its_evacuation(_approved),
    EventKind.ANSWERED: _answered,
    EventKind.DEPARTED: _of_its_evacuation(_departed),
}
