"""Facts about a host beside its GPUs: ports, mounts, memory, processes, services, site checks. No verdicts.

`None`, and "" for a text, mean that the source did not give the value. What the configuration lists is
marked, so that a judgement needs no configuration: `expected` for a mount, `configured` for a service.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gpuwarden_collectors.facts import Stamp

# --- InfiniBand and RoCE -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PortFacts:
    """One port of an RDMA device. `state` and `physical_state` in the kernel's terms, lower case: `active`, `linkup`.

    Counters are cumulative as the device keeps them. Those of InfiniBand (`link_downed` … `symbol_error`) are as narrow
    as the specification makes them and stop at their maximum: `link_downed` at 255. `carrier_down` is the kernel's own
    count for the network device of a RoCE port. `seen_down`: how often passes saw the port go from active to another state,
    counted since the reader began. `default_route`: the host's goes over this RoCE port; None: there is none just now.
    """

    device: str
    port: int
    link_layer: str = ""
    state: str = ""
    physical_state: str = ""
    rate_gbps: float | None = None
    link_downed: int | None = None
    link_error_recovery: int | None = None
    symbol_error: int | None = None
    port_rcv_errors: int | None = None
    local_link_integrity_errors: int | None = None
    excessive_buffer_overrun_errors: int | None = None
    local_ack_timeout_err: int | None = None
    rnr_nak_retry_err: int | None = None
    roce_slow_restart: int | None = None
    carrier_down: int | None = None
    seen_down: int | None = None
    default_route: bool | None = None

    @property
    def name(self) -> str:
        return f"{self.device}/{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class InfinibandFacts:
    """`excluded`: regular expressions for the names of devices that the configuration leaves out."""

    ports: tuple[PortFacts, ...] = ()
    excluded: tuple[str, ...] = ()


# --- Mounts --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MountFacts:
    """One mount point. `expected`: the configuration says that it must be there.

    `mounted` False: nothing is mounted there. `automount`: it is mounted on first use, and was not probed lest that be
    this one. `read_only`: the file system itself is, whatever its mount options say. `hung_for`: seconds that it has
    not answered a probe; `error`: what it answered instead of numbers. Not `asked`: too many others hang.
    """

    path: str
    expected: bool = False
    mounted: bool = True
    automount: bool = False
    type: str = ""
    source: str = ""
    read_only: bool = False
    bytes_total: int | None = None
    bytes_free: int | None = None
    bytes_available: int | None = None
    inodes_total: int | None = None
    inodes_free: int | None = None
    hung_for: float | None = None
    error: str = ""
    asked: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageFacts:
    mounts: tuple[MountFacts, ...] = ()


# --- Memory --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryController:
    """Errors that one memory controller counted since its EDAC driver was loaded."""

    name: str
    corrected: int | None = None
    uncorrected: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFacts:
    """Main memory in bytes. Reserved huge pages are part of the total and never available. `oom_kills`: since boot."""

    total_bytes: int
    available_bytes: int | None = None
    swap_total_bytes: int | None = None
    swap_free_bytes: int | None = None
    huge_pages_total: int | None = None
    huge_pages_free: int | None = None
    huge_page_bytes: int | None = None
    oom_kills: int | None = None
    controllers: tuple[MemoryController, ...] = ()


# --- Processes -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckProcess:
    """A process of which one thread sleeps uninterruptibly (D state) and did not run once for `seen_for` seconds.

    `gpu`: it has an NVIDIA device open; None where that may not be read. `wait_channel`: the kernel function it is in.
    """

    pid: int
    comm: str
    seen_for: float
    gpu: bool | None = None
    wait_channel: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessesFacts:
    """`stuck`: those that use a GPU first, then those stuck for longest. `followed_for`: seconds since the first pass.

    Nothing can be seen to be stuck for longer than that (None: not known). `fabric_manager`: a process of NVIDIA's fabric
    manager runs, in whatever container; None: none is seen, and not all processes of the host are.
    """

    stuck: tuple[StuckProcess, ...] = ()
    total: int = 0
    zombies: int = 0
    followed_for: float | None = None
    fabric_manager: bool | None = None


# --- Services ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceFacts:
    """One unit of systemd, in its terms: `load` (loaded, masked, not-found …), `active` (active, failed …), `sub`, `result`.

    `enabled`: it is to start at boot. `restarts`: automatic ones, counted by systemd since the unit was loaded.
    `since`: when it entered its state, in seconds of CLOCK_MONOTONIC; None if it never left its first one.
    """

    unit: str
    configured: bool = False
    load: str = ""
    active: str = ""
    sub: str = ""
    result: str = ""
    enabled: bool = False
    restarts: int | None = None
    since: float | None = None

    @property
    def installed(self) -> bool:
        return self.load != "not-found"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicesFacts:
    services: tuple[ServiceFacts, ...] = ()


# --- Site checks ---------------------------------------------------------------------------------------------------


class PluginState(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginResult:
    """The newest run of one site check. `text`: the first line of its output; `output`: the first 4 KiB of it.

    `exit_code` None: it did not end by itself. `unknown_runs`: how many runs in a row, this one included, gave no result.
    `fresh_for`: seconds for which it speaks; by then the next run is long overdue. None: for ever.
    """

    name: str
    state: PluginState
    at: Stamp
    text: str = ""
    output: str = ""
    exit_code: int | None = None
    seconds: float = 0.0
    unknown_runs: int = 0
    fresh_for: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginFacts:
    """`names`: the site checks that there are; `results`: of those that have run at least once."""

    names: tuple[str, ...] = ()
    results: tuple[PluginResult, ...] = ()
