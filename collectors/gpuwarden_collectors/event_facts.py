"""Facts about momentary events of a host, from the kernel log, NVML and DCGM. No verdicts.

`HostEvent` is the union of these classes. In JSON an event is tagged with the name of its class (`codec.py`).
"""

from __future__ import annotations

from enum import StrEnum

from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp


class Source(StrEnum):
    KERNEL_LOG = "kernel_log"
    NVML = "nvml"
    DCGM = "dcgm"


BY_TIME = 5 * 10**17
"""Least sequence of a line read by syslog(2), which has no record numbers: its time is used
(`kernel_log/syslog.py`).
"""


def numbered_alike(sequence: int, other: int) -> bool:
    """True if both numbers are of the same kind and therefore comparable."""
    return (sequence >= BY_TIME) == (other >= BY_TIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOrigin:
    """The position of a line in the kernel log."""

    boot_id: str
    """The boot whose log it is."""
    sequence: int
    """Number of the record within that boot: the kernel's, or, from `BY_TIME` on, derived from its time."""
    facility: int = 0
    """syslog facility: 0 is the kernel; processes of root write records of other facilities."""


@dataclass(frozen=True, slots=True)
class LogPosition:
    """The last record of the kernel log that has been read."""

    boot_id: str
    """The boot whose log it is."""
    sequence: int
    """Number of the record within that boot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class XidEvent:
    """An Xid, from any source."""

    at: Stamp
    """When it occurred."""
    source: Source
    """The source that reported it."""
    slot: str
    """PCI address of the GPU; empty when the line names none."""
    xid: int
    """Number of the Xid."""
    text: str = ""
    """The line, or a description by the other sources."""
    pid: int | None = None
    """Process that the line names; None if it names none."""
    gpu_instance: int | None = None
    """Id of the GPU instance that the line names."""
    compute_instance: int | None = None
    """Id of the compute instance that the line names."""
    inferred: bool = False
    """True: inferred from a line "fallen off the bus", which has no number."""
    history: bool = False
    """Older than the first start of the daemon allows (see the kernel log reader)."""
    origin: LogOrigin | None = None
    """Where the line came from; None for other sources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SxidEvent:
    """An NVSwitch error."""

    at: Stamp
    """When it occurred."""
    slot: str
    """PCI address of the switch."""
    sxid: int
    """Number of the SXid."""
    fatal: bool | None
    """True if the line says Fatal, False for Non-fatal and Correctable; None if the line has a number (`severity`)."""
    link: int | None = None
    """Port of the switch; None if the line names none."""
    severity: int | None = None
    """Number in the line (0: non-fatal, 1: fatal); None if it has none."""
    text: str = ""
    """The line."""
    history: bool = False
    """Older than the first start of the daemon allows."""
    origin: LogOrigin | None = None
    """Where the line came from."""


class AerSeverity(StrEnum):
    CORRECTED = "corrected"
    NONFATAL = "nonfatal"
    FATAL = "fatal"
    UNRECOVERED = "unrecovered"  # the kernel's recovery failed


@dataclass(frozen=True, slots=True, kw_only=True)
class AerEvent:
    """A PCIe Advanced Error Reporting line of the kernel."""

    at: Stamp
    """When it occurred."""
    slot: str
    """PCI address of the device that the line names, of any vendor."""
    severity: AerSeverity
    """By the line."""
    text: str = ""
    """The line."""
    history: bool = False
    """Older than the first start of the daemon allows."""
    origin: LogOrigin | None = None
    """Where the line came from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuResetEvent:
    """A GPU reset, successful or failed."""

    at: Stamp
    """When it occurred."""
    slot: str
    """PCI address of the GPU."""
    ok: bool
    """The reset succeeded."""
    text: str = ""
    """The line."""
    history: bool = False
    """Older than the first start of the daemon allows."""
    origin: LogOrigin | None = None
    """The position of the line; None if the reset was detected by other means."""


class LineKind(StrEnum):
    """The kind of a kernel log line that has no Xid or SXid number."""

    GPU_INIT_FAILED = "gpu_init_failed"  # the driver could not initialise a GPU, or its probe of one failed
    GPU_RESET_ADVISED = "gpu_reset_advised"  # calls to a GPU's system processor (GSP) time out repeatedly
    GSP_HEARTBEAT = "gsp_heartbeat"  # the GSP's heartbeat is late; the line names no GPU
    SOFT_LOCKUP = "soft_lockup"  # a CPU ran in the kernel for 20 s or more without a pause
    NVME_FAILED = "nvme_failed"  # the kernel gave up an NVMe controller
    NVME_FOUND = "nvme_found"  # the kernel initialised an NVMe controller
    ADAPTER_TIMEOUT = "adapter_timeout"  # a command to the firmware of a network adapter timed out
    ADAPTER_SILENT = "adapter_silent"  # the health counter of a network adapter's firmware stopped
    ADAPTER_HARDWARE = "adapter_hardware"  # an unrecoverable error of the adapter, or a fatal one of its driver
    ADAPTER_RECOVERED = "adapter_recovered"  # the driver recovered the adapter, or initialised it again
    MEMORY_FAILED = "memory_failed"  # a process met an uncorrected error of the host's memory


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLineEvent:
    """A kernel log line that is not an Xid, an SXid, a PCIe error or a reset."""

    at: Stamp
    """When it occurred."""
    what: LineKind
    """What it reports."""
    slot: str = ""
    """PCI address of the device that it names; empty if it names none."""
    part: str = ""
    """Soft lockup: the kernel module that was running, empty if none is named. NVMe: the name of the controller."""
    pid: int | None = None
    """The process that it names; None if it names none."""
    text: str = ""
    history: bool = False
    """Older than the first start of the daemon allows."""
    origin: LogOrigin | None = None
    """Where the line came from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OomKillEvent:
    """The kernel killed a process because memory ran out. The process name, which its user can choose, is left out."""

    at: Stamp
    """When it occurred."""
    of_limit: bool
    """True: a control group had reached its limit; False: the memory of the node, or of some of its NUMA nodes, was full."""
    limit_group: str = ""
    """The control group whose limit was reached; empty if none was, or the line does not name it."""
    limit_job: str = ""
    """Owner of that group, if its path proves it: `slurm/7`, `container/0123456789ab`, or `pod/<uid>` (a whole pod)."""
    group: str = ""
    """The control group of the process; empty if the line does not name it."""
    job: str = ""
    """The job of the process, in the same form."""
    pid: int | None = None
    """The process; None if the line does not name it."""
    uid: int | None = None
    """Its user."""
    history: bool = False
    """Older than the first start of the daemon allows."""
    origin: LogOrigin | None = None
    """Where the line came from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogGap:
    """Records of the kernel log were overwritten before they could be read."""

    at: Stamp
    """When the gap was found."""
    lost: int
    """How many records; 0: an unknown number."""
    origin: LogOrigin | None = None
    """The record at which the gap was found."""


HostEvent = XidEvent | SxidEvent | AerEvent | GpuResetEvent | KernelLineEvent | OomKillEvent | LogGap
