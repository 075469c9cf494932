"""What each kind of the judge's events holds. The keys are those of the ledger; see `health/event_data.py`. Pure.

HOST_LEARNED of a port is `KnownPort` (`host/memory.py`), of a job `JobPast` (`jobs/past.py`), COUNTED is `Counted` (`nvlink/link_counters.py`), of a port `PortCounted` (`host/port_downs.py`). Kinds with one key or none have no class: BOOT, LATCHED, SUBSIDED, CLEARED and
ACKNOWLEDGED (`by`), GPU_UNPINNED (`moved_to`, `exchanged`), LOG_GAP (`count`), HOST_LEARNED of a mount or counter, HOST_FORGOTTEN; nor has SUMMED
of `lemons`, whose keys are kinds of fault.
"""

from __future__ import annotations

from dataclasses import field

from gpuwarden.health.event_data import OTHER_KEYS, key, otherwise
from gpuwarden.health.model import Advice, Evidence, Health, Latch, Severity
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """RISING and RAISED. `severity`, `advice` and `latch` are None where another version knows more of them."""

    evidence: Evidence = field(metadata=OTHER_KEYS)
    """What was seen, by name."""
    count: int = field(metadata=otherwise(1))
    """How many events it stands for."""
    severity: Severity | None
    advice: Advice | None
    latch: Latch | None
    first: Stamp | None
    """First sighting."""
    counters: str | None = None
    """What the GPU had counted since driver load (`gpu/resets.py`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """XID, SXID, AER and KERNEL_LINE: lines of one kind about one subject in one step."""

    count: int = field(metadata=otherwise(1))
    """0: only the text is new, since another source gave the bare number before."""
    text: str
    """The newest line."""
    history: bool
    """All are older than the first start of the ledger allows."""
    sequence: int | None = None
    """Number of the newest line in the kernel log."""
    fatal: bool | None = None
    """Of NVSwitch errors: one was."""
    nonfatal: bool | None = None
    """Of NVSwitch errors: all were."""
    ports: str | None = None
    """Of NVSwitch errors (`xid/sxid_ports.py`)."""
    pid: int | None = None
    """The process that an Xid names."""
    gpu_instance: int | None = None
    """The MIG instance that an Xid names."""
    compute_instance: int | None = None
    """And in it."""
    source: str | None = None
    """Who reported the Xid, one of `Source`."""
    signs: str | None = None
    """What rules ask for in lines of an Xid (`xid/bursts.py`), what other lines report (`kernel_lines/records.py`)."""
    bursts: str | None = None
    """Of `LinesKept`."""
    nvml: float | None = None
    """Of Xid 79: when an event of NVML reported it, seconds of CLOCK_BOOTTIME."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinesKept:
    """XID, SXID, AER and KERNEL_LINE in a checkpoint: all lines of their boot. To be read as `Lines`, which has other keys too, in another order."""

    count: int
    text: str
    history: bool
    fatal: bool
    bursts: str
    """When the lines came (`xid/bursts.py`)."""
    sequence: int
    """-1: they have no number."""
    nonfatal: bool | None = None
    ports: str | None = None
    nvml: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """RESET."""

    ok: bool
    text: str | None = None
    """What shows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OomKilled:
    """OOM_KILL: processes of one job, or of none, that the kernel killed for want of memory in one step. Its key is the job's, or the node's."""

    of_limit: bool
    """A control group had reached its limit; else the memory of the node was full."""
    job: str
    """`slurm/7` or `container/0123456789ab`; empty if they were of none."""
    limit_job: str
    """What the limit is of, as `job`, or `pod/<uid>`; empty if it is another's, as that of a user's session, or there was none."""
    pid: int | None
    """The newest."""
    uid: int | None
    """Its user."""
    count: int = field(metadata=otherwise(1))
    """How many processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """GPU_PINNED and GPU_REPLACED; see `Pin`."""

    uuid: str
    name: str
    serial: str
    links: int
    pcie_width: int | None = None
    """None: as it was."""
    settings: str | None = None
    """None: as they were."""
    licensed: bool | None = None
    """None: as it was."""
    accepted: str | None = None
    """What an operator accepted as less than it was, or as other than its siblings have it: `links`, `pcie_width`, `settings`, `licensed`,
    separated by spaces."""
    moved_to: str | None = None
    """Of GPU_REPLACED: the slot of the board that was here; None: it belongs here no longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remapped:
    """HOST_LEARNED of a board (`gpu/remaps.py`)."""

    remapped: int
    """Rows remapped for corrected errors in its life."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSet:
    """HEALTH: the node's."""

    before: Health | None = field(default=None, metadata=key("from"))
    to: Health = field(metadata=otherwise(Health.UNKNOWN))
    reasons: str | None = None
    """Short codes, worst first, separated by spaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaisedAt:
    """SUMMED, of `raises`: when a condition was raised lately."""

    of: str
    """Its key."""
    times: str
    """Of CLOCK_BOOTTIME, separated by spaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Treated:
    """SUMMED, of `treatments`: repairs of a board; see `Repairs`."""

    case: str
    reset: float
    reboot: float
    failed: str = ""
    """Wall times, separated by spaces."""
