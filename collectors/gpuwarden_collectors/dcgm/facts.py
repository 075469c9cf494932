"""Facts that DCGM reports in one pass, with DCGM's own numbers and without judgement.

DCGM numbers GPUs, including lost ones, until its engine restarts; all other packages identify a GPU by its slot. The
GPU named in the text of an incident can be wrong, so slots are never taken from there.
"""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum
from typing import ClassVar

from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

NOT_ANSWERING = "DCGM does not answer: "
"""Prefix of a pass's error if an engine that should run is gone or hangs. Any other error concerns its installation,
its configuration or the request.
"""
PAUSED = "the engine is paused for a diagnostic"
"""Part of the error of a pass while a diagnostic runs (dcgmi diag)."""


class DcgmGpuStatus(StrEnum):
    """The engine's status of a GPU, in the order of its numbers from 0 (dcgm_structs.h, DcgmEntityStatus_t)."""

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
    """Fields that only DCGM provides, at all or for GPUs before Hopper; None where it gives no value."""

    temperature: int | None = None
    """°C; shows that the engine can read this GPU at all."""
    last_xid: int | None = None
    """The newest Xid (field 230)."""
    last_xid_at: float | None = None
    """When the engine recorded `last_xid`, Unix time in seconds."""
    memory_unrepairable: int | None = None
    """Memory beyond repair (field 1507); 0: none."""
    recovery_action: int | None = None
    """NVML's number of the recovery action (field 1523); DCGM 4.6 does not report 5 to 7."""
    graphics_active: float | None = None
    """Share of time that graphics or compute was active, 0 to 1."""
    sm_active: float | None = None
    """Share of time that SMs had a warp, 0 to 1."""
    sm_occupancy: float | None = None
    """Share of warps resident on SMs, 0 to 1."""
    tensor_active: float | None = None
    """Share of time that tensor cores were active, 0 to 1."""
    dram_active: float | None = None
    """Share of time that memory transferred data, 0 to 1."""
    pcie_tx_bytes: float | None = None
    """Bytes a second that the GPU sends over PCIe."""
    pcie_rx_bytes: float | None = None
    """Bytes a second that the GPU receives over PCIe."""
    nvlink_tx_bytes: float | None = None
    """Bytes a second that the GPU sends over NVLink."""
    nvlink_rx_bytes: float | None = None
    """Bytes a second that the GPU receives over NVLink."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DcgmGpu:
    """One GPU that the engine knows."""

    id: int
    """The engine's number of the GPU."""
    slot: str = ""
    """PCI address; empty if the engine does not have it."""
    uuid: str = ""
    name: str = ""
    """Product name."""
    status: DcgmGpuStatus = DcgmGpuStatus.OK
    """The engine's status of it. DCGM reports incidents only for GPUs whose status is ok."""
    watched: bool = True
    """Its health watches are on."""
    readings: DcgmReadings = field(default_factory=DcgmReadings)


@dataclass(frozen=True, slots=True, kw_only=True)
class DcgmIncident:
    """One incident of a health check."""

    system: int
    """A DCGM_HEALTH_WATCH bit; all bits: an Xid."""
    health: int
    """0, 10 (warn) or 20 (fail)."""
    code: int
    """Error code (dcgm_errors.h)."""
    entity_kind: int
    """The kind of the affected entity (dcgm_fields.h): 1 GPU, 3 switch, 7 CPU, 9 ConnectX adapter, 0 the node."""
    entity_id: int
    """Number of that entity."""
    first_seen: Stamp
    """When this connection first saw it."""
    message: str = ""
    """DCGM's text."""
    slot: str = ""
    """PCI address of the affected GPU; empty for other entities."""
    xid: int | None = None
    """Number of the Xid in the text; None without one."""
    link: int | None = None
    """Number of the link in the text; None without one."""
    latched: bool = False
    """True: the engine reports it until the engine restarts, even if the GPU recovers."""
    preexisting: bool = False
    """True: the first check of this GPU reported it, so its age is unknown."""


class DcgmProblemKind(StrEnum):
    """Reasons why the answers of a working engine are incomplete or misleading."""

    NO_GPUS = "no_gpus"  # it lists no GPUs, and then reports everything as healthy
    NOT_WATCHED = "not_watched"  # health watches of usable GPUs could not be enabled
    WATCHES_CHANGED = "watches_changed"  # another client changed gpuwarden's watches; they were set again
    CHECK_INCOMPLETE = "check_incomplete"  # a part of the check failed; the incidents of the rest are kept
    FIELDS_UNREADABLE = "fields_unreadable"
    BLIND = "blind"  # no GPU is readable: after an Xid 119 the engine stops querying the driver


@dataclass(frozen=True, slots=True, kw_only=True)
class DcgmProblem:
    """A reason why the answers of an engine are incomplete or misleading."""

    kind: DcgmProblemKind
    text: str
    """A description for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DcgmFacts:
    """The facts of one pass."""

    collector: ClassVar[str] = "dcgm"
    engine_version: str = ""
    address: str = ""
    """Where it was reached; empty for an embedded engine."""
    gpus: tuple[DcgmGpu, ...] = ()
    """The GPUs that it knows."""
    incidents: tuple[DcgmIncident, ...] = ()
    """Incidents of its health check."""
    overall: int = 0
    """DCGM's own overall health: 0, 10 or 20."""
    watches: int = 0
    """Mask of the health watches as the engine returned it."""
    watched_since: Stamp
    """When the watches were last set; checks that compare two samples report nothing for a minute after it."""
    imex_domain: str = ""
    """State of the IMEX domain; empty where there is none."""
    imex_daemon: int | None = None
    """Status number of the IMEX daemon; None where there is none."""
    profiling_error: str = ""
    """Why the profiling fields are missing; empty if they are not."""
    problems: tuple[DcgmProblem, ...] = ()
    """Limits of this pass."""
