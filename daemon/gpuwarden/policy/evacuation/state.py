r"""What was done for jobs whose machine ends, and the one way in which it changes: by events. Pure.

    DEPARTING --> a departure: a notice that is acted on, or a GPU that fails
       SIGNALLING (before anything is sent) --> the processes count as told, whatever happens then
          SIGNALLED unsent (a mark could not be set) --> they do not, and are told on this host
       SAVED ... REQUEUED or NOT_REQUEUED ... LAST_WORDS ... APPROVING, APPROVED
    DEPARTED --> over: withdrawn, called off, or the GPU fails no more

Nobody is told twice of one death, though several sources may announce it: who was told for one notice within TOLD_STANDS is not
told for another, and what is known of a job goes over from a departure to the one that takes its place without a gap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpuwarden.health.model import Event, EventKind
from gpuwarden.policy.evacuation.budget import FAILING_GPU
from gpuwarden.policy.evacuation.delivery import TOLD_MOST, Process, Way
from gpuwarden.policy.evacuation.event_fields import is_number, processes_in, says, stamp_in, text_in, whole_in, word_in
from gpuwarden.policy.evacuation.model import (
    BY_EXIT,
    BY_STEP,
    DEPARTURES_MOST,
    JOBS_MOST,
    NAME_MOST,
    TOLD_STANDS,
    Acknowledged,
    Approved,
    Departure,
    DepartureState,
    Given,
    JobState,
    Requeued,
    Sent,
    Spoken,
    given,
    open_departures,
)
from gpuwarden.policy.model import Result
from gpuwarden_collectors.facts import Stamp


def told_before(state: DepartureState, departure: Departure, job: str, now: Stamp) -> frozenset[Process]:
    """Who of `job` is not to be told in this departure: told in it, or lately in another."""
    own = departure.jobs.get(job)
    told = frozenset() if own is None else own.told | own.earlier
    return told.union(*(other.told | other.earlier for _, other in _others(state, departure.id, job, now)))


def fold(state: DepartureState, event: Event) -> DepartureState:
    """The state after `event`; events of kinds that do not concern a departure leave it as it is."""
    if event.kind in (EventKind.BOOT, EventKind.MACHINE_CHANGED):
        stays = event.kind == EventKind.BOOT and event.boot_id == state.boot_id
        answers = state.answers if event.kind == EventKind.BOOT else {}
        return state if stays else DepartureState(boot_id=event.boot_id, answers=answers)
    change = _CHANGES.get(event.kind)
    if change is None or (state.boot_id and event.boot_id != state.boot_id):
        return state
    return change(state, event)


# --- departures


def _departing(state: DepartureState, event: Event) -> DepartureState:
    """The same one again has another end, or has come back; if it was over for long, it begins anew."""
    name = text_in(event, "notice", NAME_MOST)
    if not name:
        return state
    kind, deadline = text_in(event, "kind", NAME_MOST), stamp_in(event, "deadline")
    known = state.departures.get(name)
    if known is None or (known.over is not None and event.at.boottime - known.over.boottime > TOLD_STANDS):
        return _with(state, Departure(id=name, kind=kind, at=event.at, deadline=deadline))
    jobs = known.jobs if known.over is None else {name: _returned(job) for name, job in known.jobs.items()}
    return _with(state, replace(known, kind=kind, deadline=deadline, over=None, jobs=jobs))


def _returned(known: JobState) -> JobState:
    """What it answered before the notice was withdrawn counts no more: it went on since."""
    earlier = _at_most(known.earlier | known.told)
    return replace(known, told=frozenset(), earlier=earlier, returned=True, acknowledged=Acknowledged())


def _departed(state: DepartureState, event: Event) -> DepartureState:
    known = state.departures.get(text_in(event, "notice", NAME_MOST))
    return state if known is None else _with(state, replace(known, over=event.at))


def _last_words(state: DepartureState, event: Event) -> DepartureState:
    known = state.departures.get(text_in(event, "notice", NAME_MOST))
    if known is None:
        return state
    result = word_in(Result, event, "result", Result.RETRY)
    spoken = Spoken(what=text_in(event, "what", NAME_MOST), result=result, text=text_in(event, "text"), at=event.at)
    return _with(state, replace(known, last_words=spoken))


def _approving(state: DepartureState, event: Event) -> DepartureState:
    known = state.departures.get(text_in(event, "notice", NAME_MOST))
    if known is None:
        return state
    before = 0 if known.approved is None else known.approved.tries
    text = "what came of it is not known"
    tried = Approved(tries=before + 1, result=Result.RETRY, text=text, at=event.at)
    return _with(state, replace(known, approved=tried))


def _approved(state: DepartureState, event: Event) -> DepartureState:
    known = state.departures.get(text_in(event, "notice", NAME_MOST))
    if known is None:
        return state
    before = 0 if known.approved is None else known.approved.tries
    result, tries = word_in(Result, event, "result", Result.RETRY), max(before, whole_in(event, "tries") or 0)
    return _with(
        state, replace(known, approved=Approved(tries=tries, result=result, text=text_in(event, "text"), at=event.at))
    )


def _with(state: DepartureState, departure: Departure) -> DepartureState:
    """Beyond DEPARTURES_MOST those that are over go first, then the oldest."""
    departures = {**state.departures, departure.id: departure}
    if len(departures) > DEPARTURES_MOST:
        others = (known for known in departures.values() if known.id != departure.id)
        first = min(others, key=lambda known: (known.over is None, known.at.boottime))
        del departures[first.id]
    return replace(state, departures=departures)


# --- telling


def _others(state: DepartureState, own: str, job: str, now: Stamp) -> list[tuple[Departure, JobState]]:
    """What other departures know of `job` and still counts, the newest last."""
    found = [
        (departure, known)
        for departure in state.departures.values()
        if departure.id != own and (known := departure.jobs.get(job)) is not None and known.told_at is not None
        if now.boottime - known.told_at.boottime <= TOLD_STANDS
    ]  # fmt: skip
    return sorted(found, key=lambda pair: pair[1].told_at.boottime if pair[1].told_at else 0.0)


def _first(state: DepartureState, departure: Departure, job: str, event: Event) -> JobState:
    """What is known of a job that comes into this departure: all, where another one goes on or has given way to this."""
    others = _others(state, departure.id, job, event.at)
    base = JobState(restarts=whole_in(event, "restarts"))
    told: frozenset[Process] = frozenset()
    for other, known in others:
        if None not in (known.restarts, base.restarts) and known.restarts != base.restarts:
            continue
        told |= known.told
        same_end = (other.kind == FAILING_GPU) == (departure.kind == FAILING_GPU)
        if same_end and (other.over is None or other.over.boottime >= departure.at.boottime):
            base = replace(known, restarts=known.restarts if base.restarts is None else base.restarts)
    if "remaining" not in event.data:  # of a version that did not say which of them were still here
        return replace(base, told=_at_most(base.told | told))
    return _remaining(replace(base, earlier=_at_most(base.earlier | (told - base.told))), event)


def _remaining(known: JobState, event: Event) -> JobState:
    """Of those told in an earlier departure only who is still here is waited for in this one: what ended between them has
    nothing to answer.
    """
    here = processes_in(event, "remaining") & known.earlier
    in_steps = _in_steps(known, event) if here else known.in_steps
    return replace(
        known, told=_at_most(known.told | here), earlier=known.earlier - here, returned=False, in_steps=in_steps
    )


def _in_steps(known: JobState, event: Event) -> bool:
    """Of those told so far and those of the event."""
    return says(event, "in_steps") and (known.in_steps or not known.told)


def _at_most(processes: frozenset[Process]) -> frozenset[Process]:
    return processes if len(processes) <= TOLD_MOST else frozenset(sorted(processes)[:TOLD_MOST])


def _signalling(state: DepartureState, event: Event) -> DepartureState:
    name, job = text_in(event, "notice", NAME_MOST), text_in(event, "job", NAME_MOST)
    if not name or not job:
        return state
    departure = state.departures.get(name) or Departure(id=name, kind="", at=event.at)
    known = departure.jobs.get(job)
    if known is None and len(departure.jobs) >= JOBS_MOST:
        return state
    if says(event, "kept"):
        return _with(state, _with_job(departure, job, _kept(known, event)))
    restarts = whole_in(event, "restarts")
    if known is None:
        known = _first(state, departure, job, event)
    elif restarts is not None and known.restarts is not None and restarts > known.restarts:
        earlier = _at_most(known.earlier | known.told)
        known = JobState(earlier=earlier, told_at=known.told_at, restarts=restarts)  # it came back here
    else:
        known = _remaining(known, event)
    return _with(state, _with_job(departure, job, _telling(known, event)))


def _with_job(departure: Departure, job: str, known: JobState) -> Departure:
    return replace(departure, jobs={**departure.jobs, job: known})


_THROUGH_SLURM = (Way.JOB_WIDE, Way.BATCH)


def _is_whole(known: JobState) -> bool:
    """It was told as a whole, by us or by another node."""
    return known.way in (*_THROUGH_SLURM, Way.WATCH) and known.result is not Sent.UNSENT


def _telling(known: JobState, event: Event) -> JobState:
    """A job that was told as a whole stays so for people when a rank that came late is told on this host."""
    processes, way = processes_in(event), word_in(Way, event, "way", Way.NONE)
    restarts = known.restarts if known.restarts is not None else whole_in(event, "restarts")
    if not processes:
        if known.told:
            return replace(known, restarts=restarts)
        return replace(known, text=text_in(event, "text"), restarts=restarts)
    through_slurm = way in _THROUGH_SLURM
    changed = replace(
        known, told=_at_most(known.told | processes), told_at=event.at, restarts=restarts, in_steps=_in_steps(known, event),
        unsure=_at_most(known.unsure | processes) if through_slurm else known.unsure,
    )  # fmt: skip
    if _is_whole(known):
        return changed
    return replace(
        changed, way=way, signal=text_in(event, "signal"), text=text_in(event, "text"),
        local_only=says(event, "local_only"), result=Sent.WATCHED if way is Way.WATCH else Sent.UNKNOWN,
    )  # fmt: skip


def _kept(known: JobState | None, event: Event) -> JobState:
    """From a checkpoint: as it was; what one event has no room for follows in `more`."""
    processes = processes_in(event)
    if known is not None and says(event, "earlier"):
        return replace(known, earlier=_at_most(known.earlier | processes))
    unsure = processes if says(event, "unsure") else frozenset()
    if known is not None and says(event, "more"):
        return replace(known, told=_at_most(known.told | processes), unsure=_at_most(known.unsure | unsure))
    return JobState(
        told=processes, unsure=unsure, told_at=stamp_in(event, "told"), way=word_in(Way, event, "way", Way.NONE),
        signal=text_in(event, "signal"), text=text_in(event, "text"), local_only=says(event, "local_only"),
        result=word_in(Sent, event, "result", Sent.UNKNOWN), count=whole_in(event, "count") or 0,
        wide=event.data.get("wide") is not False, restarts=whole_in(event, "restarts"),
        requeued=word_in(Requeued, event, "requeued", Requeued.NO), requeued_at=stamp_in(event, "requeued"),
        requeued_text=text_in(event, "requeued_text"), named=says(event, "named"), returned=says(event, "returned"),
        in_steps=says(event, "in_steps"),
    )  # fmt: skip


# --- what came of it


def _everywhere(state: DepartureState, event: Event, change: Callable[[JobState, Event], JobState]) -> DepartureState:
    """In every departure that has the job, or only in that which the event names: one death may have several notices."""
    job, notice = text_in(event, "job", NAME_MOST), text_in(event, "notice", NAME_MOST)
    changed = {
        name: _with_job(departure, job, change(departure.jobs[job], event))
        for name, departure in state.departures.items()
        if job in departure.jobs and notice in ("", name)
    }
    return replace(state, departures={**state.departures, **changed}) if changed else state


def _signalled(state: DepartureState, event: Event) -> DepartureState:
    """Where the event says; and what came of telling a job as a whole also where that was taken over."""
    state = _everywhere(state, event, _told)
    if word_in(Way, event, "way", Way.NONE) not in _THROUGH_SLURM:
        return state
    unnamed = replace(event, data={**event.data, "notice": "", "count": 0})
    return _everywhere(state, unnamed, lambda known, said: _told(known, said) if known.unsure else known)


def _told(known: JobState, event: Event) -> JobState:
    """Of a job that is told as a whole, what came of a rank that was told here besides changes nothing."""
    result, way = word_in(Sent, event, "result", Sent.UNKNOWN), word_in(Way, event, "way", known.way)
    through_slurm = way in _THROUGH_SLURM
    if known.unsure and not through_slurm:
        return known
    text, count = text_in(event, "text") or known.text, known.count + (whole_in(event, "count") or 0)
    if not through_slurm and _is_whole(known):
        return replace(known, count=count)
    if not through_slurm:
        return replace(known, result=result, text=text, count=count)
    told, unsent = known.told, result is Sent.UNSENT
    if unsent:
        told = told - known.unsure
    return replace(
        known, result=result, text=text, count=count, told=told, unsure=frozenset(), wide=known.wide and not unsent
    )


def _saved(state: DepartureState, event: Event) -> DepartureState:
    after = _everywhere(state, event, _acknowledging)
    if says(event, "kept"):
        return after
    news = _given(after, event) - _given(state, event)
    return replace(after, answers={**state.answers, **{one: state.answers.get(one, 0) + 1 for one in news}})


def _given(state: DepartureState, event: Event) -> frozenset[Given]:
    """By its job, as far as the departures that go on know."""
    job = text_in(event, "job", NAME_MOST)
    return frozenset().union(*(given(one.jobs[job]) for one in open_departures(state).values() if job in one.jobs))


def _answered(state: DepartureState, event: Event) -> DepartureState:
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
        named = {(pid, started)} if started is not None else {told for told in known.told if told[0] == pid}
        processes |= named or {(pid, 0)}
    step = whole_in(event, "step")
    by, at = text_in(event, "by", NAME_MOST), event.at
    unsaved = event.data.get("saved") is False and by not in (BY_EXIT, BY_STEP) and not says(event, "kept")
    if before.saved and not says(event, "saved"):  # who saved ends at last, too
        by, at = before.by, before.at or event.at
    return replace(
        known,
        acknowledged=Acknowledged(
            ranks=ranks if len(ranks) <= TOLD_MOST else before.ranks,
            processes=processes if len(processes) <= 2 * TOLD_MOST else before.processes,
            whole=before.whole or says(event, "whole"), all_ranks=before.all_ranks or says(event, "all_ranks"), saved=before.saved or says(event, "saved"),
            unsaved=before.unsaved or unsaved or says(event, "unsaved"), by=by, step=before.step if step is None else max(step, before.step or 0), at=at,
        ),
    )  # fmt: skip


def _ranks(event: Event) -> frozenset[int]:
    value = event.data.get("ranks", "")
    return frozenset(int(word) for word in value.split() if is_number(word)) if isinstance(value, str) else frozenset()


def _requeued(state: DepartureState, event: Event) -> DepartureState:
    return _everywhere(state, event, _sent_elsewhere)


def _sent_elsewhere(known: JobState, event: Event) -> JobState:
    restarts = known.restarts if known.restarts is not None else whole_in(event, "restarts")
    return replace(
        known, requeued=Requeued.DONE, requeued_at=event.at, requeued_text=text_in(event, "text"), restarts=restarts
    )


def _not_requeued(state: DepartureState, event: Event) -> DepartureState:
    return _everywhere(state, event, _stays)


def _stays(known: JobState, event: Event) -> JobState:
    """What was requeued once stays so: another node may have been told that it is pending already."""
    if known.requeued is Requeued.DONE:
        return known
    permanent = says(event, "permanent")
    return replace(
        known, requeued=Requeued.REFUSED if permanent else Requeued.RETRY, requeued_at=event.at,
        requeued_text=text_in(event, "text"), named=known.named or permanent or says(event, "named"),
    )  # fmt: skip


_CHANGES: dict[str, Callable[[DepartureState, Event], DepartureState]] = {
    EventKind.DEPARTING: _departing,
    EventKind.SIGNALLING: _signalling,
    EventKind.SIGNALLED: _signalled,
    EventKind.SAVED: _saved,
    EventKind.REQUEUED: _requeued,
    EventKind.NOT_REQUEUED: _not_requeued,
    EventKind.LAST_WORDS: _last_words,
    EventKind.APPROVING: _approving,
    EventKind.APPROVED: _approved,
    EventKind.ANSWERED: _answered,
    EventKind.DEPARTED: _departed,
}
