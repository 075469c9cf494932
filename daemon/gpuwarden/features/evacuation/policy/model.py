"""The types of an evacuation: the memory of an announced end or a failing GPU, and of each job that it ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from enum import StrEnum

from gpuwarden.features.evacuation.policy.delivery import SIGNALLED_MOST, Process, Way
from gpuwarden.policy.model import Result
from gpuwarden.policy.notices import NAME_MOST
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.receivers.facts import LocalJob

SIGNALLED_WITHIN = 600.0
"""Seconds for which a process that was signalled for one notice is not signalled for another: one end may have several sources, and a second
signal can end a save (some frameworks drop their handler with the first)."""
CALLED_OFF_FOR = 30.0
"""Seconds after its signal for which a process that has not acknowledged gets no signal for another notice, although
its own was called off: it may be saving. A framework that drops its handler with the first signal has done so by then,
and a process without a handler is never signalled. The shortest notice of a cloud is 30 s (GCP)."""
JOBS_MOST = 1_024
"""Jobs of one evacuation that are signalled and remembered: more than run on any node."""
EVACUATIONS_MOST = 32
"""Notices and failing GPUs remembered in one boot."""
STEPS_MOST = 2
"""Steps remembered of a job: only whether there are several matters."""
TEXT_MOST = 400  # characters of what is remembered for people
BY_EXIT = "exit"
"""Source of an acknowledgement: a process has ended without one."""
BY_STEP = "step"
"""Source of an acknowledgement: Slurm runs no step of a job of several nodes any more."""


class Sent(StrEnum):
    """The result of signalling. UNKNOWN: under way, or the daemon died; it may have been sent, and is not sent again."""

    NOTHING = ""  # nobody was to be signalled
    UNKNOWN = "unknown"
    SENT = "sent"
    WATCHED = "watched"  # another node signalled them
    UNSENT = "unsent"  # surely nothing was sent


class Given(StrEnum):
    """An answer of a job."""

    SAVED = "saved"
    UNSAVED = "unsaved"  # a rank reports that nothing was saved
    ENDED = "ended"  # all signalled processes have ended without an acknowledgement


class Requeued(StrEnum):
    NO = ""
    DONE = "done"
    RETRY = "retry"
    REFUSED = "refused"  # for good


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """Which ranks and processes of a job have acknowledged. `all_ranks`: a rank has, after agreement with the others,
    for the whole job on all its nodes.

    `by` and `at` are of the last acknowledgement, or of the last that reported a save if any did; `step` is the
    highest that was named. `saved`: a rank reported a checkpoint; `unsaved`: a rank reported that there is none.
    """

    ranks: frozenset[int] = frozenset()
    processes: frozenset[Process] = frozenset()
    all_ranks: bool = False
    saved: bool = False
    unsaved: bool = False
    by: str = ""
    step: int | None = None
    at: Stamp | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """What was done for one run of a job. `restarts`: how often it was requeued before this run, None where that is not
    known.

    `signalled`: processes signalled for good; `earlier`: those signalled in an earlier run, or before the notice was
    withdrawn; `returned`: the notice was withdrawn and has come back, and which of the processes are still here is not
    known yet. `called_off`: those of `signalled` and `earlier` whose notice was called off before they came into this
    evacuation, signalled at `called_off_signalled_at` at the latest. `wide`: the job may still be signalled as a whole.
    `marking`: this node has begun to mark the job, and has sent no signal through Slurm since: a mark of this node then
    proves no signal. `unsure`: processes signalled through Slurm of which the outcome is not known yet;
    `unsure_here`: the same of those signalled on this host; `undecided`: processes whose outcome stays unknown. `in_steps`: all of those signalled are tasks of Slurm's steps, or were started by one; `steps`: their steps, two of them at
    most. `named`: people were
    notified that the job is not requeued. `way`, `signal`, `text`, `local_only` as in Delivery; `count`: how many
    processes got it.
    """

    signalled: frozenset[Process] = frozenset()
    earlier: frozenset[Process] = frozenset()
    returned: bool = False
    signalled_at: Stamp | None = None
    called_off: frozenset[Process] = frozenset()
    called_off_signalled_at: Stamp | None = None
    way: Way = Way.NONE
    signal: str = ""
    text: str = ""
    local_only: bool = False
    result: Sent = Sent.NOTHING
    count: int = 0
    wide: bool = True
    marking: bool = False
    unsure: frozenset[Process] = frozenset()
    unsure_here: frozenset[Process] = frozenset()
    undecided: frozenset[Process] = frozenset()
    in_steps: bool = False
    steps: frozenset[str] = frozenset()
    restarts: int | None = None
    acknowledged: Acknowledged = field(default_factory=Acknowledged)
    requeued: Requeued = Requeued.NO
    requeued_at: Stamp | None = None
    requeued_text: str = ""
    named: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalNodeState:
    """The final update of the node at the scheduler: `what` was written, and the result."""

    what: str
    result: Result
    text: str
    at: Stamp


@dataclass(frozen=True, slots=True, kw_only=True)
class Approved:
    """An early approval of the end: how often it was tried, and its result, which is `RETRY` also while it is not
    known.
    """

    tries: int
    result: Result
    text: str
    at: Stamp


@dataclass(frozen=True, slots=True, kw_only=True)
class Evacuation:
    """The record of a notice that is acted on. `id` is that of the announcement, as jobs see it; `at`: since when it is
    acted on. `jobs` by `key_of`.
    """

    id: str
    kind: str
    at: Stamp
    deadline: Stamp | None = None
    jobs: Mapping[str, JobState] = field(default_factory=dict)
    final_node_state: FinalNodeState | None = None
    approved: Approved | None = None
    over: Stamp | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvacuationState:
    """All evacuations of this boot, by id. `answers`: how many jobs gave each answer so far, in earlier boots too."""

    boot_id: str = ""
    evacuations: Mapping[str, Evacuation] = field(default_factory=dict)
    answers: Mapping[Given, int] = field(default_factory=dict)


def open_evacuations(state: EvacuationState) -> Mapping[str, Evacuation]:
    """Return the evacuations that are not over, by id."""
    return {name: evacuation for name, evacuation in state.evacuations.items() if evacuation.over is None}


def jobs_of(state: EvacuationState) -> Mapping[str, JobState]:
    """Return all jobs of the open evacuations. If several evacuations have a job, the newest one's state counts."""
    return {name: job for evacuation in open_evacuations(state).values() for name, job in evacuation.jobs.items()}


def given(job: JobState) -> frozenset[Given]:
    """Return the answers that the job gave so far; none is ever removed."""
    acknowledged = job.acknowledged
    if acknowledged.saved or acknowledged.unsaved:
        return frozenset(
            name for name, value in ((Given.SAVED, acknowledged.saved), (Given.UNSAVED, acknowledged.unsaved)) if value
        )
    return frozenset({Given.ENDED} if job.signalled and job.signalled <= acknowledged.processes else ())


def key_of(job: LocalJob) -> str:
    """Return the key of a job, such as `slurm/123`, by which evacuations, events and people refer to it."""
    return f"{job.kind}/{job.id}"[:NAME_MOST]


# --- changing it


def with_evacuation(state: EvacuationState, evacuation: Evacuation) -> EvacuationState:
    """Add or replace an evacuation. Beyond EVACUATIONS_MOST, evacuations that are over are dropped first, then the
    oldest.
    """
    evacuations = {**state.evacuations, evacuation.id: evacuation}
    if len(evacuations) > EVACUATIONS_MOST:
        others = (other for other in evacuations.values() if other.id != evacuation.id)
        first = min(others, key=lambda other: (other.over is None, other.at.boottime))
        del evacuations[first.id]
    return replace(state, evacuations=evacuations)


def with_job(evacuation: Evacuation, job: str, job_state: JobState) -> Evacuation:
    return replace(evacuation, jobs={**evacuation.jobs, job: job_state})


def with_job_everywhere(
    state: EvacuationState, job: str, change: Callable[[JobState], JobState], *, notice: str = ""
) -> EvacuationState:
    """Change the job in every evacuation that has it, or in that of `notice` alone: one end may have several notices."""
    changed = {
        name: with_job(evacuation, job, change(evacuation.jobs[job]))
        for name, evacuation in state.evacuations.items()
        if job in evacuation.jobs and notice in ("", name)
    }
    return replace(state, evacuations={**state.evacuations, **changed}) if changed else state


def at_most(processes: frozenset[Process]) -> frozenset[Process]:
    """Return at most SIGNALLED_MOST of the processes, those with the lowest PIDs."""
    return processes if len(processes) <= SIGNALLED_MOST else frozenset(sorted(processes)[:SIGNALLED_MOST])
