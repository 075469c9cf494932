"""What DCGM says in one pass, as it says it: its numbers are kept, and nothing is judged.

DCGM numbers GPUs for the life of its engine, lost ones included; a GPU is known to the rest of us by its slot. What
DCGM writes into the text of an incident about the GPU can be wrong, so slots never come from there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from gpuwarden_collectors.facts import Stamp

NOT_ANSWERING = "DCGM does not answer: "
"""How the error of a pass begins where an engine that should be there is gone or hangs. Any other error is about how it
is installed, configured or asked.
"""
PAUSED = "the engine is paused for a diagnostic"
"""Part of the error of a pass while a diagnostic runs (dcgmi diag)."""


class DcgmGpuStatus(StrEnum):
    """How the engine gets on with a GPU, in the order of its numbers from 0 (dcgm_structs.h, DcgmEntityStatus_t)."""

    UNKNOWN = "unknown"
    OK = "ok"
    UNSUPPORTED = "unsupported"
    INACCESSIBLE = "inaccessible"
    LOST = "lost"
    FAKE = "fake"
    DISABLED = "disabled"
    DETACHED = "detached"


@dataclass(frozen=True, slots=True, kw_only=True)
class DcgmReadings:
    """Fields that DCGM alone has, or that it alone has on GPUs before Hopper; None where it gives no value.

    `last_xid_at` is when the engine noted `last_xid`, Unix seconds. The recovery action is NVML's number, of which
    DCGM 4.6 itself leaves 5 to 7 unreported. `temperature` (°C) is there to show that the engine can read this GPU at
    all. Profiling: shares from 0 to 1, bytes a second.
    """

    temperature: int | None = None
    last_xid: int | None = None
    last_xid_at: float | None = None
    memory_unrepairable: int | None = None
    recovery_action: int | None = None
    graphics_active: float | None = None
    sm_active: float | None = None
    sm_occupancy: float | None = None
    tensor_active: float | None = None
    dram_active: float | None = None
    pcie_tx_bytes: float | None = None
    pcie_rx_bytes: float | None = None
    nvlink_tx_bytes: float | None = None
    nvlink_rx_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DcgmGpu:
    """One GPU that the engine knows. `slot` is empty if the engine never learned where it is.

    `watched`: its health watches are on. Incidents of a GPU with any other status than ok are not reported by DCGM.
    """

    id: int
    slot: str = ""
    uuid: str = ""
    name: str = ""
    status: DcgmGpuStatus = DcgmGpuStatus.OK
    watched: bool = True
    readings: DcgmReadings = field(default_factory=DcgmReadings)


@dataclass(frozen=True, slots=True, kw_only=True)
class DcgmIncident:
    """One incident of a health check. `system` is a DCGM_HEALTH_WATCH bit (all bits: an Xid); `health` 0, 10 or 20.

    `entity_kind` and `entity_id` say what it is about (dcgm_fields.h: 1 a GPU, 3 a switch, 7 a CPU, 9 a ConnectX
    adapter, 0 the node), `slot` where that GPU is. `xid` and `link` are read from the text. `latched`: the engine
    keeps it until it is restarted, whatever becomes of the GPU. `first_seen` is when this connection first saw it;
    `preexisting`: it was there at the first check of this GPU, so it may be of any age.
    """

    system: int
    health: int
    code: int
    entity_kind: int
    entity_id: int
    first_seen: Stamp
    message: str = ""
    slot: str = ""
    xid: int | None = None
    link: int | None = None
    latched: bool = False
    preexisting: bool = False


class DcgmProblemKind(StrEnum):
    """Why the answers of an engine that answers mean less than they seem to."""

    NO_GPUS = "no_gpus"  # it lists none, and then calls everything healthy
    NOT_WATCHED = "not_watched"  # usable GPUs whose health watches could not be switched on
    WATCHES_CHANGED = "watches_changed"  # another client changed gpuwarden's watches; they were set again
    CHECK_INCOMPLETE = "check_incomplete"  # the check says that it failed in part; its incidents are kept
    FIELDS_UNREADABLE = "fields_unreadable"
    BLIND = "blind"  # nothing is readable of any GPU: since an Xid 119 the engine asks the driver nothing any more


@dataclass(frozen=True, slots=True, kw_only=True)
class DcgmProblem:
    trouble: DcgmProblemKind
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DcgmFacts:
    """One pass. `overall` is DCGM's own 0, 10 or 20; `watches` the mask of health watches as the engine gave it back.

    `watched_since`: when the watches were last set. Checks that compare two samples say nothing for a minute after it.
    IMEX: the state of the domain, and of the daemon as its number, where there is one. `profiling_error`: why the
    profiling fields are not there.
    """

    engine_version: str = ""
    address: str = ""
    gpus: tuple[DcgmGpu, ...] = ()
    incidents: tuple[DcgmIncident, ...] = ()
    overall: int = 0
    watches: int = 0
    watched_since: Stamp
    imex_domain: str = ""
    imex_daemon: int | None = None
    profiling_error: str = ""
    problems: tuple[DcgmProblem, ...] = ()
