"""The events of an evacuation, as the executor writes them, and the shortest list that restores a state. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from gpuwarden.features.evacuation.policy import event_data
from gpuwarden.features.evacuation.policy.delivery import Delivery, Process, Way
from gpuwarden.features.evacuation.policy.event_data import is_number, same
from gpuwarden.features.evacuation.policy.model import (
    STEPS_MOST,
    Acknowledged,
    Evacuation,
    EvacuationState,
    JobState,
    Sent,
)
from gpuwarden.health.event_data import write
from gpuwarden.health.model import Event, EventKind, Json
from gpuwarden.policy.model import Notice, Result
from gpuwarden.policy.notices import MOVED, id_of
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.receivers.facts import Receiver
from gpuwarden_collectors.slurm.departing_facts import SlurmJob

WORDS_MOST = 1_900
"""Characters. The ledger stores at most 2,000 of a text."""


def follow(state: EvacuationState, notices: Iterable[Notice], *, boot_id: str, now: Stamp) -> tuple[Event, ...]:
    """Return events for each evacuation that begins, gets another deadline, or is over. `notices`: all that count now,
    which are the imminent ends and the failing GPUs.

    All notices of one end are followed, so that no evacuation begins again when another notice becomes the first.
    """
    acted = {id_of(notice): notice for notice in notices}
    begun = [_departing(n, boot_id, now) for name, n in acted.items() if _is_news(state.evacuations.get(name), n)]
    ended = [
        departed(evacuation.id, "cancelled, withdrawn or over", boot_id, now)
        for evacuation in state.evacuations.values()
        if evacuation.over is None and evacuation.id not in acted
    ]
    return (*begun, *ended)


def _is_news(evacuation: Evacuation | None, notice: Notice) -> bool:
    if evacuation is None or evacuation.over is not None or evacuation.kind != notice.kind:
        return True
    if evacuation.deadline is None or notice.deadline is None:
        return evacuation.deadline is not notice.deadline
    return abs(evacuation.deadline.boottime - notice.deadline.boottime) > MOVED


def _departing(notice: Notice, boot_id: str, now: Stamp) -> Event:
    data = event_data.Departing(notice=id_of(notice), kind=notice.kind, deadline=notice.deadline)
    return Event(kind=EventKind.DEPARTING, at=now, boot_id=boot_id, data=write(data))


def marking(
    notice: str,
    job: str,
    delivery: Delivery,
    slurm: SlurmJob,
    *,
    remaining: Sequence[Receiver] = (),
    boot_id: str,
    now: Stamp,
) -> tuple[Event, ...]:
    """Return the events to write before marking a job that is to be signalled as a whole. The mark signals nobody:
    nothing is sent before `signalling`.

    The arguments are those of the step SignalJob.
    """
    nobody = replace(delivery, way=Way.NONE, receivers=(), text=f"its mark is set first, then {delivery.text}")
    planned = signalling(notice, job, nobody, slurm, remaining=remaining, boot_id=boot_id, now=now)
    return tuple(replace(event, data={**event.data, "marking": True}) for event in planned)


def signalling(
    notice: str,
    job: str,
    delivery: Delivery,
    slurm: SlurmJob | None,
    *,
    remaining: Sequence[Receiver] = (),
    again: bool = False,
    boot_id: str,
    now: Stamp,
) -> tuple[Event, ...]:
    """Return the events to write right before anything is sent: one, and one more for each hundred processes. The
    arguments are those of the step SignalJob.
    """
    steps = [aim.receiver.step for aim in delivery.receivers] + [process.step for process in remaining]
    receivers = _texts_of(aim.process for aim in delivery.receivers)
    others = _texts_of((process.pid, process.started) for process in remaining)
    first = write(
        event_data.Signalling(
            notice=notice,
            job=job,
            way=delivery.way,
            signal=delivery.signal,
            local_only=delivery.local_only,
            text=delivery.text,
            restarts=None if slurm is None else slurm.restarts,
            in_steps=bool(steps) and all(map(is_number, steps)),
            steps=" ".join(sorted(set(filter(None, steps)))[:STEPS_MOST]),
            again=again,
        )
    )
    more = {name: value for name, value in first.items() if name != "restarts"}
    parts = max(len(receivers), len(others))
    named = zip(receivers + [""] * (parts - len(receivers)), others + [""] * (parts - len(others)), strict=True)
    return tuple(
        Event(
            kind=EventKind.SIGNALLING,
            at=now,
            boot_id=boot_id,
            data={**(more if n else first), "processes": processes, "remaining": rest},
        )
        for n, (processes, rest) in enumerate(named)
    )


def signalled(
    notice: str,
    job: str,
    way: Way,
    result: Sent,
    *,
    count: int = 0,
    text: str = "",
    again: bool = False,
    boot_id: str,
    now: Stamp,
) -> Event:
    """Return the event of a signal's outcome. UNSENT only if surely nothing was sent: a job that was to be signalled as
    a whole is then signalled on this host. `again` as in SignalJob.
    """
    data = event_data.Signalled(notice=notice, job=job, way=way, result=result, count=count, text=text, again=again)
    return Event(kind=EventKind.SIGNALLED, at=now, boot_id=boot_id, data=write(data))


def settled(
    notice: str,
    job: str,
    way: Way,
    result: Sent,
    processes: Iterable[Process],
    *,
    text: str,
    due: bool = False,
    boot_id: str,
    now: Stamp,
) -> tuple[Event, ...]:
    """Return events with the outcome of `signalling` for these processes, in every evacuation that has them: one, and
    one more for each hundred processes.

    `due`: nothing was sent, and they are to be signalled as if there had been no `signalling`.
    """
    data = event_data.Signalled(notice=notice, job=job, way=way, result=result, count=0, text=text, due=due)
    return tuple(
        Event(
            kind=EventKind.SIGNALLED,
            at=now,
            boot_id=boot_id,
            data=write(replace(data, processes=part, count=len(part.split()) if result is Sent.SENT else 0)),
        )
        for part in _texts_of(processes)
    )


def saved(
    job: str,
    by: str,
    *,
    saved: bool,
    rank: int | None = None,
    process: Process | None = None,
    step: int | None = None,
    all_ranks: bool = False,
    boot_id: str,
    now: Stamp,
) -> Event:
    """Return the event of an acknowledgement. `by`: socket, file, BY_EXIT or BY_STEP. `process`: the one that
    acknowledged or ended. `all_ranks`: it counts for the whole job, on all its nodes.
    """
    pid, started = process or (None, None)
    data = event_data.Saved(
        job=job, by=by, saved=saved, rank=rank, pid=pid, started=started, step=step, all_ranks=all_ranks
    )
    return Event(kind=EventKind.SAVED, at=now, boot_id=boot_id, data=write(data))


def requeued(job: str, restarts: int, text: str = "", *, boot_id: str, now: Stamp) -> Event:
    """Return the event of a requeue. `restarts`: how often the job had been requeued before, as in the plan's step."""
    data = write(event_data.Requeued(job=job, restarts=restarts, text=text))
    return Event(kind=EventKind.REQUEUED, at=now, boot_id=boot_id, data=data)


def not_requeued(job: str, text: str, *, permanent: bool, named: bool = False, boot_id: str, now: Stamp) -> Event:
    """Return the event of a job that was not requeued. Unless `permanent`, the requeue is tried again. `named`: people are
    notified once that the job is left here.
    """
    data = write(event_data.NotRequeued(job=job, permanent=permanent, text=text, named=named))
    return Event(kind=EventKind.NOT_REQUEUED, at=now, boot_id=boot_id, data=data)


def final_node_state(notice: str, final_state: str, result: Result, text: str, *, boot_id: str, now: Stamp) -> Event:
    data = write(event_data.FinalNodeState(notice=notice, what=final_state, result=result, text=text))
    return Event(kind=EventKind.FINAL_NODE_STATE, at=now, boot_id=boot_id, data=data)


def approving(notice: str, *, boot_id: str, now: Stamp) -> Event:
    """Return the event to write before an approval is sent."""
    return Event(kind=EventKind.APPROVING, at=now, boot_id=boot_id, data=write(event_data.Approving(notice=notice)))


def approved(notice: str, result: Result, text: str, *, boot_id: str, now: Stamp, tries: int = 0) -> Event:
    """Return the event of an approval's outcome. `tries` is used in checkpoints, which keep no APPROVING."""
    data = write(event_data.Approved(notice=notice, result=result, text=text, tries=tries))
    return Event(kind=EventKind.APPROVED, at=now, boot_id=boot_id, data=data)


def departed(notice: str, text: str, boot_id: str, now: Stamp) -> Event:
    return Event(
        kind=EventKind.DEPARTED, at=now, boot_id=boot_id, data=write(event_data.Departed(notice=notice, text=text))
    )


# --- a state as events


def checkpoint(state: EvacuationState) -> list[Event]:
    """Return the events that restore `state`, once the boot of the judge's checkpoint was folded.

    No REQUEUED is among them, because the memory of lemons would count it again.
    """
    kept = [event for evacuation in state.evacuations.values() for event in _kept(evacuation, state.boot_id)]
    if not state.answers:
        return kept
    counts: dict[str, Json] = {answer.value: count for answer, count in state.answers.items()}
    return [*kept, Event(kind=EventKind.ANSWERED, at=Stamp(0.0, 0.0), boot_id=state.boot_id, data=counts)]


def _kept(evacuation: Evacuation, boot: str) -> Iterator[Event]:
    name = evacuation.id
    data = event_data.Departing(notice=name, kind=evacuation.kind, deadline=evacuation.deadline)
    yield Event(kind=EventKind.DEPARTING, at=evacuation.at, boot_id=boot, data=write(data))
    for job, job_state in evacuation.jobs.items():
        for part in _job(name, job, job_state):
            yield Event(kind=EventKind.SIGNALLING, at=evacuation.at, boot_id=boot, data=write(part))
        if (at := job_state.acknowledged.at) is not None:
            for acknowledged in _acknowledged(name, job, job_state.acknowledged):
                yield Event(kind=EventKind.SAVED, at=at, boot_id=boot, data=write(acknowledged))
    if (final := evacuation.final_node_state) is not None:
        yield final_node_state(name, final.what, final.result, final.text, boot_id=boot, now=final.at)
    if (approval := evacuation.approved) is not None:
        yield approved(name, approval.result, approval.text, boot_id=boot, now=approval.at, tries=approval.tries)
    if evacuation.over is not None:
        yield departed(name, "", boot, evacuation.over)


def _job(notice: str, job: str, job_state: JobState) -> Iterator[event_data.KeptJob | event_data.KeptProcesses]:
    first, *rest = _texts_of(job_state.signalled)
    shared = same(job_state, event_data.KeptJob) | {"steps": " ".join(sorted(job_state.steps))}
    yield event_data.KeptJob(notice=notice, job=job, processes=first, kept=True, **shared)
    more = event_data.KeptProcesses(notice=notice, job=job, processes="", more=True, kept=True)
    yield from (replace(more, processes=text) for text in rest)
    yield from (replace(more, processes=text, earlier=True) for text in _texts_of(job_state.earlier) if text)
    for only in event_data.ONLY:
        texts = _texts_of(getattr(job_state, only))
        yield from (replace(more, processes=text, only=only) for text in texts if text)


def _acknowledged(notice: str, job: str, acknowledged: Acknowledged) -> Iterator[event_data.KeptSaved]:
    shared = same(acknowledged, event_data.KeptSaved) | {"ranks": None, "processes": None}
    about = event_data.KeptSaved(notice=notice, job=job, kept=True, **shared)
    first, *processes = _texts_of(acknowledged.processes)
    ranks = texts_of(map(str, sorted(acknowledged.ranks)))
    yield replace(about, ranks=ranks[0], processes=first)
    yield from (replace(about, ranks=text) for text in ranks[1:])
    yield from (replace(about, processes=text) for text in processes)


def _texts_of(processes: Iterable[Process]) -> list[str]:
    return texts_of(f"{pid}:{started}" for pid, started in sorted(processes))


def texts_of(words: Iterable[str]) -> list[str]:
    """Join `words` into as many texts of the ledger as they need; one empty text if there are none."""
    texts, length = [[]], 0  # type: list[list[str]], int
    for word in words:
        if length + len(word) + 1 > WORDS_MOST:
            texts.append([])
            length = 0
        texts[-1].append(word)
        length += len(word) + 1
    return list(map(" ".join, texts))
