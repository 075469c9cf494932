"""Finds the outcomes of signals during which an earlier daemon was killed, and who may get one once more. Pure.

    SIGNALLING on disk, SIGNALLED not      what is done
    through Slurm, by the command's record:
        it succeeded                       it was sent
        it was not started                 nothing was sent: it is signalled now
        it is running                      nothing yet
    through Slurm, without a record:
        no mark at the job                 nothing was sent, for the mark comes first: it is signalled now
        another node's mark                that node signals it
        our mark, or a text                not known: the signal is sent behind the mark
        no answer, no job                  nothing yet
        to the batch script                not known: there is no mark
    to ranks on this host                  not known

A signal with an unknown outcome is not repeated, unless the site enables it: once, on this host, to ranks without an
acknowledgement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from gpuwarden.features.evacuation.policy.delivery import (
    MARK_STANDS,
    Delivery,
    DeliveryRules,
    Process,
    Way,
    delivery,
    parse_mark,
)
from gpuwarden.features.evacuation.policy.done import has_acknowledged
from gpuwarden.features.evacuation.policy.event_data import is_number
from gpuwarden.features.evacuation.policy.events import settled
from gpuwarden.features.evacuation.policy.model import Evacuation, EvacuationState, JobState, Sent
from gpuwarden.health.model import Event
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.receivers.facts import Kind, LocalJob
from gpuwarden_collectors.slurm.departing_facts import CommandOutcome, SlurmJob

PIDS_SHOWN = 8


def settle(
    state: EvacuationState,
    slurm_of: Callable[[str], SlurmJob | None],
    record_of: Callable[[str, str], CommandOutcome],
    node: str,
    is_busy: Callable[[str], bool],
    *,
    boot_id: str,
    now: Stamp,
) -> tuple[Event, ...]:
    """Return events with the outcome of each signal that nobody is sending any more, as far as it is known now.

    `slurm_of`: the controller's answer about a job, by `key_of`, since this daemon began; None without one.
    `record_of`: the outcome of the command that signalled a job through Slurm, by the notice's id and `key_of`. `node`:
    Slurm's name of this node. `is_busy`: true for a job to which this daemon is sending a signal.
    """
    waiting: dict[str, list[Evacuation]] = {}
    for evacuation in state.evacuations.values():
        for key, job_state in evacuation.jobs.items():
            if (job_state.unsure or job_state.unsure_here) and not is_busy(key):
                waiting.setdefault(key, []).append(evacuation)
    events: list[Event] = []
    for key, evacuations in waiting.items():
        for way, processes, result, text in _found_out(key, evacuations, slurm_of(key), record_of, node):
            events += settled(
                evacuations[0].id,
                key,
                way,
                result,
                processes,
                text=text,
                due=result is Sent.UNSENT,
                boot_id=boot_id,
                now=now,
            )
    return tuple(events)


def _found_out(
    key: str,
    evacuations: Sequence[Evacuation],
    slurm: SlurmJob | None,
    record_of: Callable[[str, str], CommandOutcome],
    node: str,
) -> Iterator[tuple[Way, frozenset[Process], Sent, str]]:
    """Yield the outcomes of a job's signals that are known now: way, processes, result, text for people. All
    evacuations that wait for an outcome count, since the later ones took it over from the first.
    """
    jobs = [evacuation.jobs[key] for evacuation in evacuations]
    if here := frozenset[Process]().union(*(job.unsure_here for job in jobs)):
        yield Way.LOCAL, here, Sent.UNKNOWN, _not_known(jobs[0].signal, here, _kill(jobs[0].signal, here))
    unsure = frozenset[Process]().union(*(job.unsure for job in jobs))
    began = min(evacuation.at.wall for evacuation in evacuations)
    job_state = next((job for job in jobs if job.unsure), None)
    if job_state is None:
        return
    records = {record_of(evacuation.id, key) for evacuation in evacuations}  # one of them has sent it
    if CommandOutcome.RUNNING in records:
        return
    if CommandOutcome.SUCCEEDED in records:
        yield Way.JOB_WIDE, unsure, Sent.SENT, "sent: gpuwarden was killed meanwhile"
    elif CommandOutcome.NOT_STARTED in records:
        yield Way.JOB_WIDE, unsure, Sent.UNSENT, "not sent: gpuwarden was killed right before"
    elif (outcome := _through_slurm(key, job_state, slurm, node, began)) is not None:
        result, command = outcome
        yield Way.JOB_WIDE, unsure, result, _TEXTS.get(result) or _not_known(job_state.signal, unsure, command)


_TEXTS = {
    Sent.WATCHED: "another node signals the whole job: its mark is in force",
    Sent.UNSENT: "not sent: gpuwarden was killed before it had marked the job",
}


def _through_slurm(
    key: str, job_state: JobState, slurm: SlurmJob | None, node: str, began: float
) -> tuple[Sent, str] | None:
    """Return the result of a signal through Slurm without a command record, and the command that an operator may type; None if
    nothing is known yet. `began`: when the first notice began for which it was to be sent, Unix time.
    """
    number = key.rpartition("/")[2]
    if job_state.way is Way.BATCH:
        return Sent.UNKNOWN, f"scancel --signal={job_state.signal} --batch {number}"
    if slurm is None or (job_state.restarts is not None and slurm.restarts != job_state.restarts):
        return None
    mark = None if slurm.admin_comment is None else parse_mark(slurm.admin_comment)
    if mark is not None and mark.at < max(int(slurm.started), began - MARK_STANDS):
        return Sent.UNSENT, ""  # the mark of an earlier run or notice
    if mark is not None and node and mark.node != node:
        return Sent.WATCHED, ""
    if slurm.admin_comment is not None and not slurm.admin_comment.strip():
        return Sent.UNSENT, ""
    return (
        Sent.UNKNOWN,
        f"scancel --signal={job_state.signal} {number}.STEP for each STEP of scontrol show step {number} that has ranks here",
    )


def _not_known(signal: str, processes: frozenset[Process], command: str) -> str:
    ranks = "1 rank" if len(processes) == 1 else f"{len(processes)} ranks"
    return (
        f"gpuwarden was killed while it sent SIG{signal.replace(' ', ', SIG')}: whether {ranks} here got it is not known. "
        f"It is not sent again: a second signal can end a save. If the job does not save: {command}"
    )


def _kill(signal: str, processes: frozenset[Process]) -> str:
    """Return the command that an operator may type. It names all signals if ranks want different ones, since it is not known
    which rank wants which.
    """
    pids = sorted(pid for pid, _ in processes)
    shown = " ".join(map(str, pids[:PIDS_SHOWN])) + (" …" if len(pids) > PIDS_SHOWN else "")
    return f"kill -{signal.replace(' ', ' or ')} {shown}"


def repeated(
    state: EvacuationState, key: str, job: LocalJob, slurm: SlurmJob | None, *, rules: DeliveryRules, now: Stamp
) -> Delivery | None:
    """Return how the signal is sent once more, or None if to nobody. Only ranks on this host get it: whether ranks on
    other nodes have acknowledged is not known.
    """
    again = repeatable(state, key, job, None if slurm is None else slurm.restarts)
    if not again:
        return None
    repeat = delivery(job, slurm, rules, now=now.wall, signalled=again, again=again, wide=False)
    return replace(repeat, text=f"{repeat.text}, possibly for the second time") if repeat.receivers else None


def repeatable(state: EvacuationState, key: str, job: LocalJob, restarts: int | None) -> frozenset[Process]:
    """Return the processes of `job` that may get a signal once more: it is not known whether they got it, and none of them has
    acknowledged any notice.

    An acknowledgement by rank number may be from any process whose rank is not known.
    """
    job_states = [evacuation.jobs[key] for evacuation in state.evacuations.values() if key in evacuation.jobs]
    job_states = [
        job_state
        for job_state in job_states
        if None in (restarts, job_state.restarts) or job_state.restarts == restarts
    ]
    acknowledged = [job_state.acknowledged for job_state in job_states]
    if any(answer.all_ranks for answer in acknowledged):
        return frozenset()
    undecided = frozenset[Process]().union(*(job_state.undecided for job_state in job_states))
    return frozenset(
        (process.pid, process.started)
        for process in job.processes
        if (process.pid, process.started) in undecided
        and not any(
            has_acknowledged(process, answer) or (process.rank is None and answer.ranks) for answer in acknowledged
        )
    )


def has_unused_mark(state: EvacuationState, key: str, restarts: int | None) -> bool:
    """Return True if this node began to mark this run of the job, and no signal followed."""
    job_states = (evacuation.jobs[key] for evacuation in state.evacuations.values() if key in evacuation.jobs)
    return any(
        job_state.marking and (None in (restarts, job_state.restarts) or job_state.restarts == restarts)
        for job_state in job_states
    )


def job_number(key: str) -> int | None:
    """Return Slurm's number of the job from a key such as slurm/123."""
    kind, _, number = key.partition("/")
    return int(number) if kind == Kind.SLURM and is_number(number) else None
