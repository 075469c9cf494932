"""The terms of judgement: health, subjects, sightings, findings, events, the verdict."""

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
    """How a GPU or node is. `unknown`: the source of the judgement could not be observed; it is never healthy by silence."""

    HEALTHY = "healthy"
    WARNING = "warning"
    FAILURE = "failure"
    UNKNOWN = "unknown"


class Severity(StrEnum):
    WARNING = "warning"
    FAILURE = "failure"


class Advice(StrEnum):
    """What to do next, from the mildest to the one that needs a person with a screwdriver."""

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
    """What ends a finding once its sightings stop: time alone, or something that was done to the GPU or node."""

    NONE = "none"
    RESET = "reset"  # a GPU reset or anything stronger
    REBOOT = "reboot"
    ACKNOWLEDGE = "acknowledge"


@dataclass(frozen=True, slots=True, order=True)
class Subject:
    """What a finding is about. `part` names a link or port below the GPU.

    `str()` is the stable key used in the ledger and on the command line: `node`, `gpu/0000:4e:00.0`,
    `link/0000:4e:00.0/3`, `switch/0000:05:00.0`.
    """

    kind: str
    """node, gpu, link, switch, adapter, port, mount, service, plugin …."""
    slot: str = ""
    """PCI address; empty for what is in no slot."""
    part: str = ""
    """Link or port below the slot, or the name of what is in no slot; empty for the whole."""

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
"""The kinds of subject that are in a PCI slot; of the others everything after the kind is the part."""
NODE = Subject("node")


@lru_cache(maxsize=4096)
def gpu(slot: str) -> Subject:
    return Subject("gpu", slot)


@lru_cache(maxsize=4096)
def link(slot: str, number: int) -> Subject:
    return Subject("link", slot, str(number))


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """One thing that can be wrong with one subject."""

    code: str
    """Code of the condition, as `xid`."""
    subject: Subject
    """What it is about."""
    detail: str = ""
    """Distinguishes several of one code on one subject: the number of the Xid, the name of a service."""

    def __hash__(self) -> int:
        """Hash in one call instead of three: keys are looked up some thousand times in a pass."""
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
    """A condition seen to hold right now. What is None is as the row of the condition has it."""

    key: Key
    """What is wrong, and with what."""
    evidence: Evidence = field(default_factory=dict)
    """What was seen, by name; published with the finding."""
    severity: Severity | None = None
    """Instead of the row's."""
    advice: Advice | None = None
    """Instead of the row's."""
    rise: float | None = None
    """Seconds for which it must be seen, instead of the row's; infinite: it never becomes a finding by time."""
    count: int = 1
    """How many events it stands for."""
    since: Stamp | None = None
    """Since when it holds, where that was before it was first seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """An active problem: one condition on one subject, as shown to operators."""

    key: Key
    """What is wrong, and with what; `str()` is the id of the finding."""
    severity: Severity
    """How bad it is."""
    title: str
    """What is wrong, for people."""
    advice: Advice
    """The next step."""
    evidence: Evidence
    """What was seen, by name."""
    first_seen: Stamp
    """First sighting."""
    last_seen: Stamp
    """Newest sighting."""
    count: int = 1
    """How many events it stands for."""
    latch: Latch = Latch.NONE
    """What ends it once it is no longer seen."""
    latched: bool = False
    """No longer seen, kept until reset, reboot or acknowledgement as `latch` has it."""
    silenced_by: str = ""
    """Id of the finding that it is a consequence of; empty if of none."""
    caused_by: Key | None = None
    """The finding that its incident begins with; None if that is itself. It counts all the same, unless it is silenced."""
    shadow: bool = False
    """It is reported, and nothing follows from it."""
    fall: float | None = None
    """Seconds without a sighting after which it ends, if it does not latch; None: as the table has it."""
    confirmed: bool = True
    """False: it is remembered from before the daemon started and was not found again since."""


@dataclass(frozen=True, slots=True)
class Incident:
    """One fault: the finding that it begins with, and what followed."""

    cause: Key
    """The finding to begin with."""
    consequences: tuple[Key, ...] = ()
    """Findings, silenced ones too, and lines of the kernel log that are only recorded."""


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
    """What it is about; None: the node or the daemon as a whole."""
    data: Evidence = field(default_factory=dict)
    """Details by name, as the ledger keeps them."""


class EventKind(StrEnum):
    STARTED = "started"  # this daemon
    BOOT = "boot"  # first seen with this boot id
    RISING = "rising"  # a condition is seen but its rise time has not passed
    SUBSIDED = "subsided"  # it went away before
    RAISED = "raised"
    CLEARED = "cleared"
    LATCHED = "latched"
    XID = "xid"
    SXID = "sxid"
    AER = "aer"
    COUNTED = "counted"  # what counters of links and ports show: what growth is measured by from now on
    KERNEL_LINE = "kernel_line"  # a line of the kernel log besides these
    RESET = "reset"
    LOG_GAP = "log_gap"
    ACKNOWLEDGED = "acknowledged"
    HEALTH = "health"  # the node's health changed
    GPU_PINNED = "gpu_pinned"
    GPU_REPLACED = "gpu_replaced"
    GPU_UNPINNED = "gpu_unpinned"
    HOST_LEARNED = "host_learned"  # a port that was active, a mount that was writable, a counter: what a loss is measured by from now on
    HOST_FORGOTTEN = "host_forgotten"
    MACHINE_CHANGED = "machine_changed"
    LEDGER_MOVED = "ledger_moved"  # a corrupt ledger was moved aside
    LEDGER_LOST = "ledger_lost"  # events at its end, with a damaged log or a power cut
    EXCLUDED = "excluded"  # this node was taken out of scheduling
    RESTORED = "restored"
    INTENDED = "intended"  # policy wants something of an actuator
    OUTCOME = "outcome"  # what became of it
    LIFTED = "lifted"  # another actor ended or took over an exclusion of gpuwarden's
    EXCLUDED_BY_OTHERS = "excluded_by_others"  # another party's exclusion; once more after each start of the daemon
    ORDERED = "ordered"  # an operator's exclude or restore
    NOTICED = "noticed"  # the end of this machine was announced
    NOTICE_ENDED = "notice_ended"
    NEEDS_PERSON = "needs_person"  # a finding after which only a person restores
    HELD = "held"  # an exclusion of gpuwarden's is in force: in checkpoints, and once in each later boot
    RETURNED = "returned"  # in checkpoints only: a restoration without a person
    DEPARTING = "departing"  # an announced end, or a failing GPU, is acted on
    SIGNALLING = "signalling"  # a job is about to be signalled; before anything is sent
    SIGNALLED = "signalled"  # what came of it
    SAVED = "saved"  # a job, or a rank of it, says or shows that it is done
    REQUEUED = "requeued"  # a job was sent elsewhere
    NOT_REQUEUED = "not_requeued"
    FINAL_NODE_STATE = "final_node_state"  # the final node state that was set right before the end
    APPROVING = "approving"  # an announced end is about to be approved early; before anything is sent
    APPROVED = "approved"  # what came of it
    DEPARTED = "departed"  # withdrawn, or over
    TEST_BEGUN = "test_begun"  # an active test runs, or more is known of it
    TEST_ENDED = "test_ended"
    TEST_XID = "test_xid"  # of the test's own process, and set aside
    TESTED = "tested"  # the result of an active test on one GPU
    GATE_ABLE = "gate_able"  # this host can test its GPUs: once, the first time that a probe shows it
    GATE_WANTED = "gate_wanted"  # a failure after which a test must pass before gpuwarden restores the node
    GATE_BEGUN = "gate_begun"  # gpuwarden runs that test
    GATE_ENDED = "gate_ended"  # what it came to
    REPAIR_BEGUN = "repair_begun"  # gpuwarden is about to do a step of a repair; before anything is asked for
    REPAIR_ENDED = "repair_ended"  # what came of it
    OOM_KILL = "oom_kill"  # the kernel killed a process for want of memory
    JOB_BEGUN = "job_begun"  # a job has GPUs of this node
    JOB_USED = "job_used"  # what it used until then
    JOB_ENDED = "job_ended"  # its record: what touched it, what it used, and why it ended
    BUNDLE_MADE = "bundle_made"  # an archive for the vendor of a failed part
    BUNDLE_FAILED = "bundle_failed"  # none could be made
    BOX_FROZEN = "box_frozen"  # a copy of the black box was made for a new failure
    RELEASED = "released"  # what a latch waits for was done
    ANSWERED = "answered"  # in checkpoints only: how many jobs gave each answer
    REPAIR_TRIED = "repair_tried"  # in checkpoints only: a step of a repair, and what came of it
    TRIED = "tried"  # in checkpoints only: how many intents came to what
    SUMMED = "summed"  # in checkpoints only: what many events came to


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A GPU that belongs in this machine."""

    slot: str
    """PCI address."""
    uuid: str = ""
    """UUID; empty until NVML gave it."""
    name: str = ""
    """Product name."""
    serial: str = ""
    """Serial number of the board."""
    first_seen: Stamp = field(default_factory=lambda: Stamp(0.0, 0.0))
    """When it was first seen here."""
    links: int = 0
    """A bit for each NVLink that was ever active, against which a loss is noticed."""
    pcie_width: int = 0
    """Lanes that were accepted as all that its slot has; 0: as many as card and slot allow."""
    settings: str = ""
    """Settings that were accepted though its siblings have others (`gpu/settings.py`)."""
    licensed: bool = False
    """Its vGPU software had a licence here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuVerdict:
    """One expected or present GPU."""

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
    """How often one kind of fault came lately."""

    what: str
    """Kind of fault."""
    days: int
    """On how many of the last 28 days it came."""
    slot: str = ""
    """PCI address of the GPU; empty: the node as a whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The whole judgement at one instant."""

    at: Stamp
    """The instant."""
    health: Health
    """Failure if any finding is one, else unknown if something needed was not observed, else the worst finding."""
    reasons: tuple[str, ...] = ()
    """Short codes, worst first."""
    unknown: tuple[str, ...] = ()
    """What could not be observed."""
    findings: tuple[Finding, ...] = ()
    """Those in force, worst first."""
    silenced: tuple[Finding, ...] = ()
    """Findings that are consequences of others."""
    incidents: tuple[Incident, ...] = ()
    """What findings and silenced ones are of, without those of shadow checks; the worst first."""
    gpus: tuple[GpuVerdict, ...] = ()
    """Every expected or present GPU."""
    expected: int | None = None
    """How many GPUs belong here; None if not known."""
    expected_from: str = ""
    """`configured`, `machine_type`, `learned` or empty."""
    present: int = 0
    """How many GPUs are here."""
    lemons: tuple[LemonDays, ...] = ()
    """Kinds of fault that came on several days."""
    domain: str = ""
    """The NVLink domain of this node, as last known; empty if it has none."""
