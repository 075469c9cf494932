"""Types of the judge: health, subjects, sightings, findings, events, the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from functools import lru_cache

from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

Json = str | int | float | bool | None
Evidence = Mapping[str, Json]


class Health(StrEnum):
    """Health of a GPU or node. `unknown`: its source could not be observed; silence never means healthy."""

    HEALTHY = "healthy"
    WARNING = "warning"
    FAILURE = "failure"
    UNKNOWN = "unknown"


class Severity(StrEnum):
    WARNING = "warning"
    FAILURE = "failure"


class Advice(StrEnum):
    """The next step, from the mildest to those that need a person on site or the vendor."""

    NONE = "none"
    OBSERVE = "observe"
    RESTART_APP = "restart_app"
    RESET_GPU = "reset_gpu"
    RESTART_SERVICE = "restart_service"
    REBOOT = "reboot"
    FIX_CONFIGURATION = "fix_configuration"
    UPDATE_SOFTWARE = "update_software"
    INSPECT_HARDWARE = "inspect_hardware"
    CONTACT_SUPPORT = "contact_support"


class Latch(StrEnum):
    """What ends a finding once its sightings stop: time alone, or an action on the GPU or node."""

    NONE = "none"
    RESET = "reset"  # a GPU reset or anything stronger
    REBOOT = "reboot"
    ACKNOWLEDGE = "acknowledge"


@dataclass(frozen=True, slots=True, order=True)
class Subject:
    """Subject of a finding. `part` names a link or port below the GPU.

    `str()` is the stable key used in the ledger and on the command line: `node`, `gpu/0000:4e:00.0`,
    `link/0000:4e:00.0/3`, `switch/0000:05:00.0`.
    """

    kind: str
    """node, gpu, link, switch, adapter, port, mount, service, plugin …."""
    slot: str = ""
    """PCI address; empty for a subject without a slot."""
    part: str = ""
    """Link or port below the slot, or the name of a subject without a slot; empty for the whole."""

    def __str__(self) -> str:
        return "/".join(filter(None, (self.kind, self.slot, self.part)))

    @classmethod
    def parse(cls, text: str) -> Subject:
        kind, _, rest = text.partition("/")
        if kind not in SLOTTED:
            return cls(kind, "", rest)
        slot, _, part = rest.partition("/")
        return cls(kind, slot, part)


SLOTTED = ("gpu", "link", "switch", "adapter")
"""Kinds of subject that are in a PCI slot. For the others everything after the kind is the part."""
NODE = Subject("node")


@lru_cache(maxsize=4096)
def gpu(slot: str) -> Subject:
    return Subject("gpu", slot)


@lru_cache(maxsize=4096)
def link(slot: str, number: int) -> Subject:
    return Subject("link", slot, str(number))


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Identity of a finding: one condition on one subject."""

    code: str
    """Code of the condition, such as `xid`."""
    subject: Subject
    """The affected component."""
    detail: str = ""
    """Distinguishes several findings of one code on one subject: the number of the Xid, the name of a service."""

    def __hash__(self) -> int:
        """Hash in one call instead of three: keys are looked up thousands of times in a pass."""
        return hash((self.code, self.detail, self.subject.slot, self.subject.part))

    def __str__(self) -> str:
        code = f"{self.code}.{self.detail}" if self.detail else self.code
        return f"{code}@{self.subject}"

    @classmethod
    def parse(cls, text: str) -> Key:
        code_detail, _, subject = text.partition("@")
        code, _, detail = code_detail.partition(".")
        return cls(code, Subject.parse(subject or "node"), detail)


@dataclass(frozen=True, slots=True)
class Sighting:
    """A condition that is seen to hold now. None: as in the row of the condition."""

    key: Key
    """Condition and subject."""
    evidence: Evidence = field(default_factory=dict)
    """Observed values, by name; published with the finding."""
    severity: Severity | None = None
    """Overrides the row."""
    advice: Advice | None = None
    """Overrides the row."""
    rise: float | None = None
    """Seconds for which it must be seen, overrides the row; infinite: it never becomes a finding by time."""
    count: int = 1
    """Number of events it stands for."""
    since: Stamp | None = None
    """When it began, if before it was first seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """An active problem: one condition on one subject, as shown to operators."""

    key: Key
    """Condition and subject; `str()` is the id of the finding."""
    severity: Severity
    """Severity of the newest sighting."""
    title: str
    """Short description for people."""
    advice: Advice
    """The next step."""
    evidence: Evidence
    """Observed values, by name."""
    first_seen: Stamp
    """First sighting."""
    last_seen: Stamp
    """Newest sighting."""
    count: int = 1
    """Number of events it stands for."""
    latch: Latch = Latch.NONE
    """What ends it once it is no longer seen."""
    latched: bool = False
    """No longer seen, but kept until reset, reboot or acknowledgement, according to `latch`."""
    silenced_by: str = ""
    """Id of the finding that silences it as a consequence; empty if none."""
    caused_by: Key | None = None
    """First cause of its incident; None if it is the first itself. It counts nevertheless, unless it is silenced."""
    shadow: bool = False
    """Reported without any action."""
    fall: float | None = None
    """Seconds without a sighting after which it ends, if it does not latch; None: as in the table."""
    confirmed: bool = True
    """False: it is remembered from before the daemon's start and was not confirmed since."""


@dataclass(frozen=True, slots=True)
class Incident:
    """One fault: its first cause and the consequences."""

    cause: Key
    """The finding without a cause."""
    consequences: tuple[Key, ...] = ()
    """Findings, including silenced ones, and kernel log lines that are only recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A change at an instant. State is the fold of events, in order."""

    kind: str
    """One of `EventKind`; a text, since a newer version may have written it."""
    at: Stamp
    """When it occurred."""
    boot_id: str
    """The boot in which it occurred."""
    key: Key | None = None
    """Condition and subject; None: the node or the daemon as a whole."""
    data: Evidence = field(default_factory=dict)
    """Details by name, as the ledger keeps them."""


class EventKind(StrEnum):
    STARTED = "started"  # this daemon
    BOOT = "boot"  # first seen with this boot id
    RISING = "rising"  # a condition is seen but its rise time has not passed
    SUBSIDED = "subsided"  # it ended before its rise time
    RAISED = "raised"
    CLEARED = "cleared"
    LATCHED = "latched"
    XID = "xid"
    SXID = "sxid"
    AER = "aer"
    COUNTED = "counted"  # counters of links and ports: the new base for growth
    KERNEL_LINE = "kernel_line"  # any other line of the kernel log
    RESET = "reset"
    LOG_GAP = "log_gap"
    ACKNOWLEDGED = "acknowledged"
    HEALTH = "health"  # the node's health changed
    GPU_PINNED = "gpu_pinned"
    GPU_REPLACED = "gpu_replaced"
    GPU_UNPINNED = "gpu_unpinned"
    HOST_LEARNED = "host_learned"  # an active port, a writable mount, a counter: the new base for comparison
    HOST_FORGOTTEN = "host_forgotten"
    MACHINE_CHANGED = "machine_changed"
    LEDGER_MOVED = "ledger_moved"  # a corrupt ledger was moved aside
    LEDGER_LOST = "ledger_lost"  # events at its end, through a damaged log or a power cut
    EXCLUDED = "excluded"  # this node was excluded from scheduling
    RESTORED = "restored"
    INTENDED = "intended"  # policy decided on an action of an actuator
    OUTCOME = "outcome"  # the result of an intent
    LIFTED = "lifted"  # another actor ended or took over an exclusion by gpuwarden
    EXCLUDED_BY_OTHERS = "excluded_by_others"  # another party's exclusion; repeated after each start of the daemon
    ORDERED = "ordered"  # an operator's exclude or restore
    NOTICED = "noticed"  # the termination of this machine was announced
    NOTICE_ENDED = "notice_ended"
    NEEDS_PERSON = "needs_person"  # a finding after which only a person restores
    HELD = "held"  # an exclusion by gpuwarden is in force: in checkpoints, and once in each later boot
    RETURNED = "returned"  # in checkpoints only: a restoration without a person
    DEPARTING = "departing"  # an evacuation begins, for a termination or a failing GPU
    SIGNALLING = "signalling"  # a job is about to be signalled; before anything is sent
    SIGNALLED = "signalled"  # the result of signalling
    SAVED = "saved"  # a job, or a rank of it, reports or shows that it is done
    REQUEUED = "requeued"  # a job was requeued
    NOT_REQUEUED = "not_requeued"
    FINAL_NODE_STATE = "final_node_state"  # the final node state that was set right before the termination
    APPROVING = "approving"  # a termination is about to be approved early; before anything is sent
    APPROVED = "approved"  # the result of the approval
    DEPARTED = "departed"  # the evacuation is withdrawn, or over
    TEST_BEGUN = "test_begun"  # an active test runs, or has new details
    TEST_ENDED = "test_ended"
    TEST_XID = "test_xid"  # caused by the test's own process, and set aside
    TESTED = "tested"  # the result of an active test on one GPU
    GATE_ABLE = "gate_able"  # this host can test its GPUs: once, when a probe first shows it
    GATE_WANTED = "gate_wanted"  # a failure after which a test must pass before gpuwarden restores the node
    GATE_BEGUN = "gate_begun"  # gpuwarden runs that test
    GATE_ENDED = "gate_ended"  # the result of that test
    REPAIR_BEGUN = "repair_begun"  # gpuwarden is about to do a step of a repair; before any request
    REPAIR_ENDED = "repair_ended"  # the result of the step
    OOM_KILL = "oom_kill"  # the kernel killed a process for lack of memory
    JOB_BEGUN = "job_begun"  # a job has GPUs of this node
    JOB_USED = "job_used"  # usage of a job so far
    JOB_ENDED = "job_ended"  # its record: faults that affected it, its usage, and why it ended
    BUNDLE_MADE = "bundle_made"  # an archive for the vendor of a failed part
    BUNDLE_FAILED = "bundle_failed"  # the archive could not be made
    BOX_FROZEN = "box_frozen"  # a copy of the black box was made for a new failure
    RELEASED = "released"  # the action that a latch waits for was done
    ANSWERED = "answered"  # in checkpoints only: number of jobs by answer
    REPAIR_TRIED = "repair_tried"  # in checkpoints only: a step of a repair, and its result
    TRIED = "tried"  # in checkpoints only: number of intents by outcome
    SUMMED = "summed"  # in checkpoints only: sums over many events


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """An expected GPU."""

    slot: str
    """PCI address."""
    uuid: str = ""
    """UUID; empty until NVML reports it."""
    name: str = ""
    """Product name."""
    serial: str = ""
    """Serial number of the board."""
    first_seen: Stamp = field(default_factory=lambda: Stamp(0.0, 0.0))
    """When it was first seen here."""
    links: int = 0
    """Bit mask of the NVLinks that were ever active, to detect a loss."""
    pcie_width: int = 0
    """PCIe lanes accepted as the maximum of its slot; 0: the maximum of card and slot."""
    settings: str = ""
    """Accepted settings that differ from its siblings (`gpu/settings.py`)."""
    licensed: bool = False
    """Its vGPU software had a licence here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuVerdict:
    """Verdict on one expected or present GPU."""

    slot: str
    """PCI address."""
    health: Health
    """Worst of its findings, or unknown."""
    index: int | None = None
    """NVML's index; None while NVML does not list it."""
    uuid: str = ""
    """UUID; empty if not known."""
    name: str = ""
    """Product name."""
    serial: str = ""
    """Serial number of the board."""
    expected: bool = True
    """It belongs in this machine."""
    present: bool = True
    """It is here."""
    reasons: tuple[str, ...] = ()
    """Short codes, worst first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LemonDays:
    """Recent frequency of one kind of fault."""

    what: str
    """Kind of fault."""
    days: int
    """Number of the last 28 days with the fault."""
    slot: str = ""
    """PCI address of the GPU; empty: the node as a whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The whole judgement at one instant."""

    at: Stamp
    """The instant."""
    health: Health
    """Failure if any finding is one, else unknown if a required source was not observed, else the worst finding."""
    reasons: tuple[str, ...] = ()
    """Short codes, worst first."""
    unknown: tuple[str, ...] = ()
    """Codes of what could not be observed."""
    findings: tuple[Finding, ...] = ()
    """Findings in force, worst first."""
    silenced: tuple[Finding, ...] = ()
    """Findings that are consequences of others."""
    incidents: tuple[Incident, ...] = ()
    """Incidents of the findings, including silenced ones, without those of shadow checks; worst first."""
    gpus: tuple[GpuVerdict, ...] = ()
    """Every expected or present GPU."""
    expected: int | None = None
    """Expected number of GPUs; None if unknown."""
    expected_from: str = ""
    """`configured`, `machine_type`, `learned` or empty."""
    present: int = 0
    """Number of present GPUs."""
    lemons: tuple[LemonDays, ...] = ()
    """Days with faults, by kind and GPU."""
    domain: str = ""
    """The NVLink domain of this node, as last known; empty if it has none."""
