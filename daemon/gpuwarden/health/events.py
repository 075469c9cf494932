"""Data of each kind of the judge's events. The keys are those of the ledger; see `health/event_data.py`. Pure.

Defined elsewhere: HOST_LEARNED of a port, `KnownPort` (`host/memory.py`), and of a job, `JobPast` (`jobs/past.py`);
COUNTED, `Counted` (`nvlink/link_counters.py`), and of a port, `PortCounted` (`host/port_downs.py`). Kinds with one key
or none have no class: BOOT, LATCHED, SUBSIDED, CLEARED and ACKNOWLEDGED (`by`), GPU_UNPINNED (`moved_to`, `exchanged`),
LOG_GAP (`count`), HOST_LEARNED of a mount or counter, HOST_FORGOTTEN. Nor has SUMMED of `lemons` (kinds of fault).
"""

from __future__ import annotations

from dataclasses import field

from gpuwarden.health.event_data import OTHER_KEYS, key, otherwise
from gpuwarden.health.model import Advice, Evidence, Health, Latch, Severity
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """RISING and RAISED. `severity`, `advice` and `latch` are None for values that this version does not know."""

    evidence: Evidence = field(metadata=OTHER_KEYS)
    """Observed values, by name."""
    count: int = field(metadata=otherwise(1))
    """Number of events it stands for."""
    severity: Severity | None
    advice: Advice | None
    latch: Latch | None
    first: Stamp | None
    """First sighting."""
    counters: str | None = None
    """The GPU's counters since driver load (`gpu/resets.py`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """XID, SXID, AER and KERNEL_LINE: lines of one kind about one subject in one step."""

    count: int = field(metadata=otherwise(1))
    """0: only the text is new, since another source reported the bare number before."""
    text: str
    """The newest line."""
    history: bool
    """All lines are history (see the kernel log reader)."""
    sequence: int | None = None
    """Number of the newest line in the kernel log."""
    fatal: bool | None = None
    """NVSwitch errors: at least one is fatal."""
    nonfatal: bool | None = None
    """NVSwitch errors: all are non-fatal."""
    ports: str | None = None
    """NVSwitch errors: affected ports (`xid/sxid_ports.py`)."""
    pid: int | None = None
    """Process in the Xid line."""
    gpu_instance: int | None = None
    """MIG GPU instance in the Xid line."""
    compute_instance: int | None = None
    """MIG compute instance in the Xid line."""
    source: str | None = None
    """Source of the Xid, one of `Source`."""
    signs: str | None = None
    """Signs of Xid lines (`xid/bursts.py`) or kinds of other lines (`kernel_lines/records.py`)."""
    bursts: str | None = None
    """Only in `LinesKept`."""
    nvml: float | None = None
    """Xid 79: when NVML reported it, seconds of CLOCK_BOOTTIME."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinesKept:
    """XID, SXID, AER and KERNEL_LINE in a checkpoint: all lines of their boot. Read as `Lines`, which has more keys."""

    count: int
    text: str
    history: bool
    fatal: bool
    bursts: str
    """Times and signs of the lines (`xid/bursts.py`)."""
    sequence: int
    """-1: the lines have no number."""
    nonfatal: bool | None = None
    ports: str | None = None
    nvml: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """RESET."""

    ok: bool
    text: str | None = None
    """Evidence of the reset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OomKilled:
    """OOM_KILL: processes that the kernel's OOM killer killed in one step. The key is their job, or the node."""

    of_limit: bool
    """A control group reached its limit; otherwise the memory of the node was full."""
    job: str
    """`slurm/7` or `container/0123456789ab`; empty for processes of no job."""
    limit_job: str
    """Owner of the limit, as `job` or `pod/<uid>`; empty without a limit, or for another owner (a user session)."""
    pid: int | None
    """The newest process."""
    uid: int | None
    """User of that process."""
    count: int = field(metadata=otherwise(1))
    """Number of processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """GPU_PINNED and GPU_REPLACED; see `Pin`."""

    uuid: str
    name: str
    serial: str
    links: int
    pcie_width: int | None = None
    """None: unchanged."""
    settings: str | None = None
    """None: unchanged."""
    licensed: bool | None = None
    """None: unchanged."""
    accepted: str | None = None
    """Accepted deviations, separated by spaces: `links`, `pcie_width`, `settings`, `licensed`."""
    moved_to: str | None = None
    """GPU_REPLACED: the new slot of the previous board; None: it is no longer expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remapped:
    """HOST_LEARNED of a board (`gpu/remaps.py`)."""

    remapped: int
    """Rows remapped for corrected errors in its life."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSet:
    """HEALTH: health of the node."""

    before: Health | None = field(default=None, metadata=key("from"))
    to: Health = field(metadata=otherwise(Health.UNKNOWN))
    reasons: str | None = None
    """Short codes, worst first, separated by spaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaisedAt:
    """SUMMED of `raises`: recent times at which a condition was raised."""

    of: str
    """Key of the condition."""
    times: str
    """Seconds of CLOCK_BOOTTIME, separated by spaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Treated:
    """SUMMED of `treatments`: repairs of a board; see `Repairs`."""

    case: str
    reset: float
    reboot: float
    failed: str = ""
    """Wall times, separated by spaces."""
