"""Lists the jobs that have GPUs of this node now, from all sources. Pure.

Slurm's jobs are those of the prolog's notes and of the processes on GPUs (`health/gpu/jobs.py`). All others, and
Slurm's if no collector reads its notes, come from the collector `workloads`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from gpuwarden.features.why.model import REQUEUED, End, Epoch, JobKind
from gpuwarden.features.why.stored import ALSO_MOST, NAME_MOST, printable
from gpuwarden.health.gpu.jobs import order, seen_on_gpus
from gpuwarden.health.view import Sight
from gpuwarden_collectors.base import PassOutcome
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.receivers.workloads_facts import Workload, WorkloadsFacts
from gpuwarden_collectors.slurm.jobs_facts import Job, JobsFacts

_word = printable(64)
_name = printable(NAME_MOST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A job as its source reports it now."""

    name: str
    began: float | None = None
    """Seconds of CLOCK_BOOTTIME; None if the source does not report it."""
    is_noted: bool = False
    """The scheduler recorded its begin; otherwise its first process did with its start."""
    uid: int | None = None
    user: str = ""
    job_name: str = ""
    slots: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    by_slot: Mapping[str, tuple[int, ...]]
    """Its processes that have a GPU open."""
    oom_kills: int = 0
    """Number of its processes that its control group counts as killed for lack of memory."""
    end: End | None = None
    """None while it runs."""
    is_asked: bool = False
    """The scheduler's answer about how it ended is still due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """All jobs, and the kinds of which all jobs are known."""

    all: tuple[Member, ...]
    """In the order in which they began."""
    names: frozenset[str]
    """All names, including those in `errors`."""
    known: frozenset[str]
    errors: Mapping[str, Exception]
    """By name, the errors that jobs' facts raised."""


def stamp(at: float, now: Stamp) -> Stamp:
    """Return an instant of this boot on both clocks."""
    return Stamp(at, now.wall - (now.boottime - at))


def members(pins: Collection[str], sight: Sight, over: Collection[int] = frozenset()) -> Members:
    """Return the jobs that have GPUs here, or had until a moment ago.

    `pins`: slots of the GPUs that belong here. `over`: numbers of Slurm jobs that have their record, of which only the
    names are returned.
    """
    jobs, workloads = sight.jobs, sight.fresh(WorkloadsFacts)
    made: list[tuple[str, Callable[[], Member | None]]] = []
    kinds: set[str] = set()
    if workloads is not None:
        alone = sight.view.jobs.outcome is PassOutcome.ABSENT or JobsFacts.collector in sight.rules.off
        kinds |= {kind for kind in JobKind if alone or kind is not JobKind.SLURM}
        there = [
            workload for workload in workloads.workloads if workload.name.partition("/")[0] in kinds and workload.slots
        ]
        made += [(_name(workload.name), partial(_of, workload, sight)) for workload in there]
    if jobs is not None:
        kinds.add(JobKind.SLURM)
        made += _of_slurm(jobs, pins, sight, over) if jobs.jobs or jobs.processes else ()
    all_members, errors = [], {}
    for name, make in made:
        try:
            if (member := make()) is not None:
                all_members.append(member)
        except Exception as error:  # noqa: BLE001 - whatever it is, all other jobs are followed
            errors[name] = error.with_traceback(None)  # the traceback would keep all facts
    all_members.sort(key=lambda member: member.began or 0.0)
    names = frozenset([*errors, *(member.name for member in all_members), *map(slurm_name, over)])
    return Members(all=tuple(all_members), names=names, known=frozenset(kinds), errors=errors)


def _of(workload: Workload, sight: Sight) -> Member:
    by_slot: dict[str, tuple[int, ...]] = {}
    for process in workload.processes:
        for slot in process.slots:
            by_slot[slot] = (*by_slot.get(slot, ()), process.pid)
    source = "cgroup" if workload.group else "processes"
    return Member(
        name=_name(workload.name),
        began=workload.started,
        uid=workload.uid,
        slots=workload.slots,
        also=tuple(_name(name) for name in workload.also[:ALSO_MOST]),
        by_slot=by_slot,
        oom_kills=workload.oom_kills or 0,
        end=None if workload.ended is None else End(at=stamp(workload.ended, sight.now), known_from=source),
    )


def _of_slurm(
    jobs: JobsFacts, pins: Collection[str], sight: Sight, over: Collection[int]
) -> Iterator[tuple[str, Callable[[], Member | None]]]:
    on: dict[int, dict[str, tuple[int, ...]]] = {}
    for slot, there in seen_on_gpus(pins, sight).items():
        for workload in there:
            on.setdefault(workload.job, {})[slot] = workload.pids
    by_id = {job.id: job for job in jobs.jobs if job.id not in over}
    by_number = order({*pins, *sight.gpus}, sight.gpus, jobs.minors)
    for number in sorted({*on, *by_id}.difference(over)):
        job = by_id.get(number, Job(id=number))
        yield slurm_name(number), partial(_of_job, job, on.get(number, {}), by_number, sight)


def _of_job(job: Job, by_slot: Mapping[str, tuple[int, ...]], by_number: Sequence[str], sight: Sight) -> Member | None:
    slots = tuple(sorted(by_slot)) if job.ended is None else _slots_of(job, by_number)
    if not (slots or by_slot):
        return None
    return Member(
        name=slurm_name(job.id),
        began=job.started,
        is_noted=job.started is not None,
        uid=job.uid,
        user=_word(job.user),
        job_name=_word(job.job_name),
        slots=slots or tuple(sorted(by_slot)),
        also=(f"{JobKind.SLURM}/{job.sluid}",) if job.sluid else (),
        by_slot=by_slot,
        end=None if job.ended is None else _end(job, stamp(job.ended, sight.now)),
        is_asked=job.batch and not job.state,
    )


def slurm_name(number: int) -> str:
    return f"{JobKind.SLURM}/{number}"


def _end(job: Job, at: Stamp) -> End:
    by_steps = job.state == "FAILED" and not job.exit_code and not job.signal
    return End(
        at=at,
        known_from="epilog",
        state=_word(job.state),
        exit_code=job.step_exit_code if by_steps and job.step_exit_code else job.exit_code,
        signal=job.step_signal if by_steps and job.step_signal else job.signal,
        by="" if job.cancelled_by is None else str(job.cancelled_by),
        nodes=job.nodes,
        failed_node=_word(job.failed_node),
        failed_here=job.failed_here,
        step_failed=bool(job.step_exit_code or job.step_signal),
    )


def end_before(end: End | None, epoch: Epoch, member: Member, now: Stamp) -> End:
    """Return the end of a job whose name another one has now. If the number runs again for the same user, Slurm
    requeued the job, unless its end is known. `end`: None if its end was not seen before.
    """
    is_requeued = epoch.kind == JobKind.SLURM and member.uid == epoch.uid
    if end is None:
        at = stamp(now.boottime if member.began is None else member.began, now)
        noted = is_requeued and member.is_noted
        return End(at=at, known_from="scheduler", state=REQUEUED) if noted else End(at=at, known_from="processes")
    return replace(end, state=REQUEUED) if is_requeued and not (end.state or end.exit_code) else end


def _slots_of(job: Job, slots: Sequence[str]) -> tuple[str, ...]:
    """Return the GPUs of a job by its note. `slots`: the GPU of each of Slurm's indices."""
    return tuple(sorted({slots[index] for index in job.gpus if 0 <= index < len(slots) and slots[index]}))
