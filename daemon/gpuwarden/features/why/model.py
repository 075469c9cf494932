"""The types of a job that has or had GPUs of this node: its epoch, touches, end, use, and cause.

A *job* is one of Slurm, a container, a pod, or a session of processes that no scheduler placed. Its *epoch* is the time from its begin
to its end on this node. What *touches* it is what happened to its GPUs, to its processes or to the node in its epoch, and until
`SETTLES` after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from gpuwarden.health.condition import LIMITED, NO_MANAGER
from gpuwarden.health.model import Subject
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

NAME = "why"
SETTLES = 60.0
"""Seconds after its end in which events still touch a job: a driver reports some faults only when a process ends."""
REQUEUED = "REQUEUED"
"""State of a requeued job if the scheduler has no state of its own for the end of that run."""
TOUCHES_MOST = 24
"""Most touches kept of a job: the first, since a cause precedes what follows from it. What ends no job gives way. Repetitions are counted."""
LASTING = frozenset({"finding", "rising", "notice", "announced"})
"""Touches that last until they are over; all others are momentary."""
WORKING_FABRIC = frozenset({f"fabric_unhealthy.{LIMITED}", f"fabric_unhealthy.{NO_MANAGER}"})
"""Codes of findings about the fabric with which its GPUs work, and jobs continue."""
PIDS_MOST = 64
"""Most PIDs kept of a job: the newest."""


class JobKind(StrEnum):
    SLURM = "slurm"
    CONTAINER = "container"
    POD = "pod"
    SESSION = "session"  # processes on GPUs that no scheduler placed, by their session leader


class Cause(StrEnum):
    """Who or what ended a job. The values are labels of a metric."""

    NONE = "none"  # it ended well: there is no cause
    HARDWARE = "hardware"
    HOST = "host"
    FABRIC = "fabric"
    JOB = "job"  # its own doing: an Xid of its program, its memory limit, its exit code
    SCHEDULER = "scheduler"  # an operator or the scheduler: cancelled, time limit, preempted
    NOTICE = "notice"  # the machine was announced to end
    OTHER_NODE = "other_node"
    NOT_SEEN = "not_seen"  # nothing that this node saw


class Certainty(StrEnum):
    CERTAIN = "certain"  # a source names this job, its process or its control group
    LIKELY = "likely"  # it was on the job's own GPU or node at the right time
    POSSIBLE = "possible"  # at the right time, and others fit as well


@dataclass(frozen=True, slots=True, kw_only=True)
class Touch:
    """One thing that happened to a job. Repetitions are counted."""

    what: str
    """`xid`, `sxid`, `finding`, `rising` (a condition that was seen for too short a time to be a finding), `standing` (a finding
    from before the job, with which none can begin), `reset`, `oom_limit`,
    `oom_shared` (the limit of a group above the job), `oom_node`, `oom_count` (its control group counts kills, and no line of the kernel says why),
    `memory_error` (a process met an uncorrected error of the host's memory), `notice`,
    `announced` (a notice of an end that is far away), `signalled`, `saved`, `requeued`, `excluded`, `excluded_by_others` or `boot`."""
    detail: str = ""
    """Which one: the number of an Xid, the id of a finding, the reason of an exclusion. At most 200 characters."""
    at: Stamp
    """When it happened first."""
    until: Stamp | None = None
    """When it was over, if it lasts (a finding, a notice); the newest time if it was repeated; else None."""
    slot: str = ""
    """PCI address of the GPU; empty for the node. For `signalled` the failing GPU that is the reason."""
    pid: int | None = None
    """The process that it names; None if it names none."""
    count: int = 1
    """Number of times."""
    follows: str = ""
    """Id of the finding that it is a consequence of; empty for a first cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a job ended, as far as this node knows. What is not known is empty or None."""

    at: Stamp
    """When it ended here."""
    known_from: str
    """The source of `at`, in falling order of trust: `epilog`, `scheduler`, `cgroup`, `processes`; `restart`: it was gone when the
    daemon was back, and `at` is the latest time; `boot`: it was gone after a boot."""
    state: str = ""
    """The scheduler's word, as `FAILED`, `TIMEOUT`, `CANCELLED`, `PREEMPTED`, `NODE_FAIL`, `OUT_OF_MEMORY`, `COMPLETED`."""
    exit_code: int | None = None
    """Exit code of the batch script or of the container's first process."""
    signal: int | None = None
    """The signal that ended it."""
    by: str = ""
    """uid of the user who cancelled it, if the scheduler's accounting has it."""
    nodes: int | None = None
    """Number of its nodes, if the scheduler reports it."""
    failed_node: str = ""
    """The node that the scheduler lost, if it is named."""
    failed_here: bool = False
    """That node is this one. Known only while its record is made."""
    step_failed: bool = False
    """The scheduler reports a failed step, however the script ended. Known only while its record is made."""

    @property
    def has_others(self) -> bool:
        """Return True if it is known to have had more nodes than this one."""
        return self.nodes is not None and self.nodes > 1

    @property
    def by_itself(self) -> bool:
        """Return True if its script ended with an exit code, also if Slurm put it back into the queue for that code
        (RequeueExit). Of a run that others ended Slurm reports none, whatever the script did (seen with 22.05.8, 24.11.5
        and 25.11.7).
        """
        return bool(self.exit_code)

    @property
    def may_be_well(self) -> bool:
        """Return True if its script did not fail and no source reports its end, as on all nodes but the first."""
        return self.known_from == "epilog" and not (self.state or self.exit_code or self.signal)


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What a job used of its GPUs, over all of them. None: not measured."""

    energy_j: float | None = None
    """Energy, joules: by the driver's counter where there is one, else the integral of power."""
    energy_covers: float | None = None
    """Share of its GPU-seconds that `energy_j` is measured over, 0 to 1."""
    busy: float | None = None
    """Mean share of time in which a kernel ran, 0 to 1."""
    tensor: float | None = None
    """Mean share of time in which tensor cores were active, 0 to 1."""
    memory_peak_bytes: int | None = None
    """Most memory of one GPU in use at any pass."""
    idle_gpu_seconds: float = 0.0
    """GPU-seconds that it had GPUs without a process on them."""
    throttled_gpu_seconds: float = 0.0
    """GPU-seconds in which a thermal or power-brake limit was in force."""
    observed_gpu_seconds: float = 0.0
    """GPU-seconds that the shares are measured over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """A job on this node, from its begin on."""

    name: str
    """Its kind and what the kind calls it: `slurm/4711`, `container/0123456789ab`, `pod/namespace/name`, `session/4711`. With `began` it is
    unique: a scheduler may give a number again."""
    began: Stamp
    """When it began here."""
    boot_id: str = ""
    """The boot in which it began."""
    uid: int | None = None
    """Its user; None where no source gives it."""
    user: str = ""
    """Name of the user, printable; empty where no source gives it."""
    job_name: str = ""
    """Name of the job, printable, at most 64 characters; empty where no source gives it."""
    slots: tuple[str, ...] = ()
    """PCI addresses of its GPUs."""
    touches: tuple[Touch, ...] = ()
    """What touched it so far, in order of time, at most `TOUCHES_MOST`."""
    use: Use = field(default_factory=Use)
    """What it used until it was last written down."""
    energy_at: Mapping[str, int] = field(default_factory=dict)
    """By slot, the driver's energy counter as of `use`, millijoules."""
    used_at: Stamp | None = None
    """When `use` was written down; None before."""
    also: tuple[str, ...] = ()
    """Other names of a pod: by its UID, and of its containers."""
    pids: tuple[int, ...] = ()
    """Processes of it that had a GPU open, at most `PIDS_MOST`, the newest last."""

    @property
    def kind(self) -> str:
        return self.name.partition("/")[0]

    @property
    def id(self) -> str:
        return self.name.partition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Why a job ended."""

    cause: Cause
    """Who or what."""
    certainty: Certainty = Certainty.CERTAIN
    """How sure that is."""
    sentence: str = ""
    """The answer for its owner: one sentence, at most 300 characters."""
    code: str = ""
    """The condition, Xid or state that it is based on, such as `xid.79`; empty if none."""
    slot: str = ""
    """PCI address of the GPU to blame; empty if none is."""
    serial: str = ""
    """Serial number of its board."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A job that has ended, and why."""

    epoch: Epoch
    """What is known of it."""
    end: End
    """How it ended."""
    answer: Answer
    """Why."""


def job_subject(name: str) -> Subject:
    return Subject("job", part=name)


def user_name(by: str) -> str:
    """Return the user who cancelled a job, for people; a bare number is shown as a uid."""
    return "root" if by == "0" else f"uid {by}" if by.isdecimal() else by
