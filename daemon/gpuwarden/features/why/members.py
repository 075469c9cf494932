"""Which jobs have GPUs of this node now, by all sources. Pure.

Slurm's jobs are those of the prolog's notes and of the processes on GPUs (`health/gpu/jobs.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from gpuwarden.features.why.model import End, JobKind
from gpuwarden.features.why.stored import NAME_MOST, printable
from gpuwarden.health.gpu.jobs import order, seen_on_gpus
from gpuwarden.health.view import Sight
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.slurm.jobs_facts import Job, JobsFacts

_word = printable(64)
_name = printable(NAME_MOST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A job as its source has it now."""

    name: str
    began: float | None = None
    """Seconds of CLOCK_BOOTTIME; None if the source does not say."""
    uid: int | None = None
    user: str = ""
    job_name: str = ""
    slots: tuple[str, ...] = ()
    by_slot: Mapping[str, tuple[int, ...]]
    """Its processes that have a GPU open."""
    end: End | None = None
    """None while it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """All jobs, and the kinds of which it is known which there are."""

    by_name: Mapping[str, Member]
    known: frozenset[str]


def stamp(at: float, now: Stamp) -> Stamp:
    """Return an instant of this boot on both clocks."""
    return Stamp(at, now.wall - (now.boottime - at))


def members(pins: Collection[str], sight: Sight) -> Members:
    """Return the jobs that have GPUs here, or had until a moment ago. `pins`: slots of the GPUs that belong here."""
    jobs = sight.jobs
    if jobs is None:
        return Members(by_name={}, known=frozenset())
    found = {member.name: member for member in _of_slurm(jobs, pins, sight)} if jobs.jobs or jobs.processes else {}
    return Members(by_name=found, known=frozenset({JobKind.SLURM}))


def _of_slurm(jobs: JobsFacts, pins: Collection[str], sight: Sight) -> Iterator[Member]:
    on: dict[int, dict[str, tuple[int, ...]]] = {}
    for slot, there in seen_on_gpus(pins, sight).items():
        for one in there:
            on.setdefault(one.job, {})[slot] = one.pids
    known = {job.id: job for job in jobs.jobs}
    for number in sorted({*on, *known}):
        job, by_slot = known.get(number, Job(id=number)), on.get(number, {})
        slots = tuple(sorted(by_slot)) if job.ended is None else _slots_of(job, jobs, pins, sight)
        if slots or by_slot:
            yield Member(
                name=f"{JobKind.SLURM}/{number}",
                began=job.started,
                uid=job.uid,
                user=_word(job.user),
                job_name=_word(job.job_name),
                slots=slots or tuple(sorted(by_slot)),
                by_slot=by_slot,
                end=None if job.ended is None else End(at=stamp(job.ended, sight.now), known_from="epilog"),
            )


def _slots_of(job: Job, jobs: JobsFacts, pins: Collection[str], sight: Sight) -> tuple[str, ...]:
    """Return the GPUs that a job had by its note."""
    slots = order({*pins, *sight.gpus}, sight.gpus, jobs.minors)
    return tuple(sorted({slots[index] for index in job.gpus if 0 <= index < len(slots) and slots[index]}))
