"""Facts about a host except its GPUs: ports, mounts, memory, processes, services, site checks. No verdicts.

`None`, and "" for a text, mean that the source did not provide the value. Objects that the configuration lists are
marked, so that judging needs no configuration: `expected` for a mount, `configured` for a service.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

# --- InfiniBand and RoCE -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PortFacts:
    """One port of an RDMA device. Counters are cumulative as the device keeps them; those of InfiniBand stop at their maximum."""

    device: str
    """Name of the device, as `mlx5_0`."""
    port: int
    """Number of the port, from 1."""
    slot: str = ""
    """PCI address of the adapter's function; empty where sysfs names none."""
    guid: str = ""
    """Globally unique id of the device; empty if sysfs has none."""
    merged: tuple[str, ...] = ()
    """PCI addresses of the other functions whose ports are merged with this port, as in a bond."""
    driver: str = ""
    """Kernel driver of the adapter; empty where sysfs names none."""
    link_layer: str = ""
    """`infiniband` or `ethernet`."""
    state: str = ""
    """Logical state in the kernel's terms, lower case: `active`, `down` …."""
    physical_state: str = ""
    """Physical state in the kernel's terms, lower case: `linkup`, `polling` …."""
    rate_gbps: float | None = None
    """Current rate, Gb/s."""
    link_downed: int | None = None
    """Times that the link went down; stops at 255."""
    link_error_recovery: int | None = None
    """Successful recoveries of the link; stops at 255."""
    symbol_error: int | None = None
    """Minor link errors; stops at 65,535."""
    port_rcv_errors: int | None = None
    """Packets received with an error; stops at 65,535."""
    local_link_integrity_errors: int | None = None
    """Local physical errors beyond the threshold; stops at 15."""
    excessive_buffer_overrun_errors: int | None = None
    """Buffer overruns beyond the threshold; stops at 15."""
    local_ack_timeout_err: int | None = None
    """ACK timeouts of queue pairs (RoCE and InfiniBand of mlx5)."""
    rnr_nak_retry_err: int | None = None
    """Receiver-not-ready retries that were exhausted."""
    roce_slow_restart: int | None = None
    """Slow restarts of RoCE after congestion."""
    no_completion_cmds: int | None = None
    """EFA: commands to the adapter that were never completed."""
    cmds_err: int | None = None
    """EFA: commands that ended with an error."""
    rx_drops: int | None = None
    """EFA: packets dropped at receipt."""
    unresponsive_remote_events: int | None = None
    """EFA: times that a remote end did not answer."""
    impaired_remote_conn_events: int | None = None
    """EFA: times that a connection to a remote end was impaired."""
    carrier_down: int | None = None
    """How often the network device of a RoCE port lost its carrier, counted by the kernel."""
    seen_down: int | None = None
    """How often the port went from active to another state between two passes, since the reader started."""
    sent_bytes: int | None = None
    """Bytes that it sent by RDMA."""
    default_route: bool | None = None
    """True if the host's default route goes over this RoCE port; None without a default route."""

    @property
    def name(self) -> str:
        return f"{self.device}/{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PcieLink:
    """One PCIe link. None: sysfs does not know it."""

    at: str
    """PCI address of its lower end."""
    width: int | None = None
    """Lanes now."""
    width_max: int | None = None
    """Lanes that both ends have."""
    gtps: float | None = None
    """GT/s now."""
    gtps_max: float | None = None
    """GT/s that both ends have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFacts:
    """One PCI function with RDMA ports. Read once a minute."""

    slot: str
    """Its PCI address."""
    device: str
    """Name of its RDMA device, as `mlx5_0`."""
    board: str = ""
    """Board id (PSID): adapters of one board take the same firmware."""
    firmware: str = ""
    """Version of its firmware."""
    upstream: tuple[str, ...] = ()
    """PCI addresses of the bridges above it, from the root port down."""
    links: tuple[PcieLink, ...] = ()
    """The PCIe links from the adapter up to the root port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InfinibandFacts:
    """One pass over the RDMA ports."""

    collector: ClassVar[str] = "infiniband"
    ports: tuple[PortFacts, ...] = ()
    """All ports that are not left out."""
    adapters: tuple[AdapterFacts, ...] = ()
    """The adapters of these ports."""
    excluded: tuple[str, ...] = ()
    """Regular expressions for the names of devices that the configuration excludes."""


# --- Mounts --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MountFacts:
    """One mount point."""

    path: str
    """Where it is mounted."""
    expected: bool = False
    """The configuration requires it."""
    mounted: bool = True
    """False: nothing is mounted there."""
    automount: bool = False
    """True if it is mounted on first use; not probed, because the probe would mount it."""
    type: str = ""
    """Type of the file system, as `nfs4`."""
    source: str = ""
    """What is mounted: a device, or a server and its export."""
    read_only: bool = False
    """True if the file system itself is read-only, regardless of mount options."""
    bytes_total: int | None = None
    """Size, bytes."""
    bytes_free: int | None = None
    """Free bytes, those reserved for root included."""
    bytes_available: int | None = None
    """Free bytes for other users."""
    inodes_total: int | None = None
    """All inodes; None where the file system has no fixed number."""
    inodes_free: int | None = None
    hung_for: float | None = None
    """Seconds since an unanswered probe started; None if the mount answered."""
    error: str = ""
    """Error of the probe; empty if it gave numbers."""
    asked: bool = True
    """False: not probed, because too many mounts hang, or it is not visible below the host's root in a container."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageFacts:
    """One pass over the mounts."""

    collector: ClassVar[str] = "storage"
    mounts: tuple[MountFacts, ...] = ()
    """The mounts that are watched."""


# --- Memory --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryController:
    """Errors that one memory controller counted since its EDAC driver was loaded."""

    name: str
    """Its name in sysfs, as `mc0`."""
    corrected: int | None = None
    """Corrected errors."""
    uncorrected: int | None = None
    """Uncorrected errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFacts:
    """Main memory. Reserved huge pages are part of the total and never available."""

    collector: ClassVar[str] = "memory"
    total_bytes: int
    """All memory, bytes."""
    available_bytes: int | None = None
    """The kernel's estimate of what can be allocated without swapping, bytes."""
    swap_total_bytes: int | None = None
    """Swap space, bytes."""
    swap_free_bytes: int | None = None
    """Free swap space, bytes."""
    huge_pages_total: int | None = None
    """Reserved huge pages of the default size."""
    huge_page_bytes: int | None = None
    """The default size, bytes."""
    oom_kills: int | None = None
    """Processes killed for lack of memory, since boot."""
    controllers: tuple[MemoryController, ...] = ()
    """Memory controllers of EDAC."""


# --- Processes -----------------------------------------------------------------------------------------------------


TESTER = "gw-test"
"""Process name of a worker of `gpuwarden test`, as shown in Xids and /proc."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckProcess:
    """A process with a thread that stays in uninterruptible sleep (D state) without running."""

    pid: int
    """Process number."""
    comm: str
    """Its name, as the kernel has it."""
    seen_for: float
    """Seconds for which this was observed."""
    gpu: bool | None = None
    """True if it has an NVIDIA device open; None where that may not be read."""
    wait_channel: str = ""
    """The kernel function it is in; empty if not known."""
    uid: int | None = None
    """Its effective uid; None if unknown, as in old traces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessesFacts:
    """One pass over the processes of the host."""

    collector: ClassVar[str] = "processes"
    stuck: tuple[StuckProcess, ...] = ()
    """Those that use a GPU first, then those stuck for longest."""
    followed_for: float | None = None
    """Seconds since the first pass, the longest time for which a process can be observed as stuck; None if unknown."""
    fabric_manager: bool | None = None
    """True if NVIDIA's fabric manager runs, in any container; None if unseen while some processes are invisible."""


# --- Services ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceFacts:
    """One unit of systemd, in its terms."""

    unit: str
    """Name of the unit."""
    configured: bool = False
    """The configuration names it."""
    load: str = ""
    """`loaded`, `masked`, `not-found` …."""
    active: str = ""
    """`active`, `failed`, `inactive` …."""
    sub: str = ""
    """Sub-state, as `running` or `dead`."""
    result: str = ""
    """Result of its last run, as `success` or `exit-code`."""
    enabled: bool = False
    """True if it is to start at boot."""
    restarts: int | None = None
    """Automatic restarts, counted by systemd since the unit was loaded."""

    @property
    def installed(self) -> bool:
        return self.load != "not-found"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicesFacts:
    """One pass over the units."""

    collector: ClassVar[str] = "services"
    services: tuple[ServiceFacts, ...] = ()
    """The units that are watched."""


# --- Site checks ---------------------------------------------------------------------------------------------------


class PluginState(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginResult:
    """The newest run of one site check."""

    name: str
    """Name of the check in the configuration."""
    state: PluginState
    """Its result, by exit code."""
    at: Stamp
    """When the run ended."""
    text: str = ""
    """The first line of its output."""
    exit_code: int | None = None
    """None: it did not end by itself."""
    unknown_runs: int = 0
    """Number of consecutive runs without a result, this one included."""
    fresh_for: float | None = None
    """Seconds for which the result is valid; by then the next run is long overdue. None: for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginFacts:
    """The site checks of this host."""

    collector: ClassVar[str] = "plugin"
    names: tuple[str, ...] = ()
    """All that are configured."""
    results: tuple[PluginResult, ...] = ()
    """The newest result of those that have run at least once."""
