"""Facts about the GPUs of a host, as frozen values. No verdicts.

All facts about one GPU are keyed by its *slot*: the PCI address in lower case with a four-digit domain, as in
`0000:4e:00.0`. NVML indices shift when a GPU is lost and UUIDs move with the board; the slot is stable.

Numbers keep the unit of their source, and the unit is part of the name. `None` means that the source did not
provide the value: the GPU or driver does not support it, or the call failed (see `GpuFacts.errors`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import ClassVar

from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.gpu_readings import GpuReadings

_SLOT = re.compile(r"(?:([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.([0-7]))?")


def slot_of(address: str) -> str:
    """Normalises a PCI address to a slot: from `00000000:4E:00.0` (NVML), `PCI:0000:4e:00` (kernel log), or sysfs.

    An address without a function means function 0. Raises ValueError for anything else.
    """
    match = _SLOT.fullmatch(address.strip().removeprefix("PCI:"))
    if match is None:
        raise ValueError(f"not a PCI address: {address[:40]!r}")
    domain, bus, device, function = match.groups()
    return f"{int(domain or '0', 16):04x}:{bus.lower()}:{device.lower()}.{function or '0'}"


@dataclass(frozen=True, slots=True, order=True)
class Stamp:
    """One instant on two clocks."""

    boottime: float
    """Seconds of CLOCK_BOOTTIME, which never steps; for measuring."""
    wall: float
    """Unix time in seconds; for showing."""


# --- GPUs, as NVML gives them --------------------------------------------------------------------------------------


class GpuAnswer(StrEnum):
    """How a GPU answered in this pass (NVML return codes of the same names; nvml.h, nvmlReturn_t)."""

    OK = "ok"
    LOST = "lost"  # NVML_ERROR_GPU_IS_LOST
    RESET_REQUIRED = "reset_required"  # NVML_ERROR_RESET_REQUIRED
    TIMEOUT = "timeout"  # NVML_ERROR_TIMEOUT
    UNKNOWN = "unknown"  # NVML_ERROR_UNKNOWN or any other failure of every call that is always supported
    HUNG = "hung"  # a call did not return within the deadline, in two processes one after the other or in one that cannot be ended


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFacts:
    """One NVLink of one GPU. Counters are since driver load; which of them exist depends on the NVLink generation."""

    link: int
    """Number of the link at this GPU, from 0."""
    active: bool | None = None
    """True if the NVLink state is enabled; None if unknown."""
    remote: str | None = None
    """PCI address of the GPU or switch at its other end; None if the driver names none."""
    crc_flit_errors: int | None = None
    """CRC errors of control flits (NVLink 1 to 4)."""
    crc_data_errors: int | None = None
    """CRC errors of data (NVLink 1 to 4)."""
    replay_errors: int | None = None
    """Replays after errors (NVLink 1 to 4)."""
    recovery_errors: int | None = None
    """Recoveries after errors (NVLink 1 to 4)."""
    rx_errors: int | None = None
    """Packets received with an error (NVLink 5)."""
    rx_symbol_errors: int | None = None
    """Errors in received symbols (NVLink 5, nvml.h)."""
    recoveries: int | None = None
    """Link recoveries that succeeded (NVLink 5)."""
    recovery_failures: int | None = None
    """Link recoveries that failed (NVLink 5)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance:
    """A compute instance, with readings of its GPU instance under the names of `GpuReadings`."""

    gpu_instance: int
    """Id of the GPU instance."""
    compute_instance: int
    """Id of the compute instance in it."""
    uuid: str = ""
    """UUID of the MIG device; empty if not known."""
    profile: str = ""
    """Name of its profile, as `1g.10gb`."""
    memory_total_bytes: int | None = None
    """Memory of the GPU instance, bytes."""
    memory_reserved_bytes: int | None = None
    """Memory that the driver reserves, bytes."""
    memory_free_bytes: int | None = None
    """Free memory, bytes."""
    memory_used_bytes: int | None = None
    """Used memory, bytes."""
    bar1_total_bytes: int | None = None
    """BAR1 address space, bytes."""
    bar1_used_bytes: int | None = None
    """Used BAR1 address space, bytes."""
    bar1_free_bytes: int | None = None
    """Free BAR1 address space, bytes."""
    gpm_graphics_active: float | None = None
    """Share of time that graphics or compute was active, 0 to 1."""
    gpm_sm_active: float | None = None
    """Share of time that SMs had a warp, 0 to 1."""
    gpm_sm_occupancy: float | None = None
    """Share of warps resident on SMs, 0 to 1."""
    gpm_tensor_active: float | None = None
    """Share of time that tensor cores were active, 0 to 1."""
    gpm_dram_active: float | None = None
    """Share of time that memory transferred data, 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process that has a context on a GPU."""

    pid: int
    """Process number, in the PID namespace of the daemon."""
    gpu_instance: int | None = None
    """Id of its GPU instance; None without MIG."""
    compute_instance: int | None = None
    """Id of its compute instance; None without MIG."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The physical location of a GPU, as reported by the driver. Serial, slot and tray exist from Blackwell on."""

    module_id: int | None = None
    """Number of its module on the baseboard; equal for all GPUs of a host without a baseboard."""
    cluster_uuid: str = ""
    """UUID of the multi-node NVLink domain of the GPU; empty if the domain is a single node."""
    chassis_serial: str = ""
    """Serial number of the chassis."""
    chassis_slot: int | None = None
    """Slot in the chassis, counting switches."""
    chassis_tray: int | None = None
    """Index of the compute tray in the chassis."""


NO_PLACEMENT = Placement()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallError:
    """A call that failed in this pass, except with "not supported"."""

    call: str
    """Name of the function of NVML."""
    code: int
    """Its nvmlReturn."""
    text: str = ""
    """NVML's text for the code; empty if it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """One GPU in one pass."""

    slot: str
    """PCI address; empty if NVML did not give it."""
    index: int
    """NVML's index, which can change with a reboot."""
    answer: GpuAnswer = GpuAnswer.OK
    """How the GPU answered."""
    silent: int = 0
    """Seconds without an answer from a hung GPU, until this pass began."""
    uuid: str = ""
    """UUID as NVML gives it; empty if not known."""
    name: str = ""
    """Product name."""
    serial: str = ""
    """Serial number of the board; empty if it has none."""
    vbios: str = ""
    """Version of its VBIOS."""
    inforom: str = ""
    """Version of the image of its InfoROM."""
    board_part: str = ""
    """Part number of the board; empty if it has none, or the driver is too old to give it."""
    minor: int | None = None
    """Number of its device file /dev/nvidiaN."""
    placement: Placement = NO_PLACEMENT
    """Its physical location."""
    readings: GpuReadings = field(default_factory=GpuReadings)
    links: tuple[LinkFacts, ...] = ()
    """Its NVLinks."""
    mig: tuple[MigInstance, ...] = ()
    """Its MIG compute instances; empty without MIG."""
    processes: tuple[GpuProcess, ...] = ()
    """Processes that have a context on it."""
    errors: tuple[CallError, ...] = ()
    """Calls that failed in this pass."""
    read_at: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Times of the readings that are not read in each pass, by attribute, in seconds of CLOCK_BOOTTIME."""
    read_seconds: float | None = None
    """Seconds of this pass spent on the GPU, without waiting for a CPU, rounded to 0.1 s; None if not measured."""


class NvmlProblem(StrEnum):
    """Why NVML as a whole failed; values follow NVML's error texts."""

    DRIVER_NOT_LOADED = "driver_not_loaded"
    LIBRARY_MISMATCH = (
        "library_mismatch"  # NVML_ERROR_LIB_RM_VERSION_MISMATCH: the library was upgraded under a loaded driver
    )
    NO_PERMISSION = "no_permission"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlFacts:
    """One pass over all GPUs. With a `problem` there are no GPUs."""

    collector: ClassVar[str] = "nvml"
    gpus: tuple[GpuFacts, ...] = ()
    """The GPUs by NVML's index."""
    driver_version: str = ""
    """Version of the loaded driver."""
    nvml_version: str = ""
    """Version of the NVML library."""
    cuda_version: str = ""
    """Newest CUDA version that the driver supports."""
    problem: NvmlProblem | None = None
    """Why NVML as a whole failed; None if it did not."""
    problem_code: int = 0
    """NVML's return code for the problem (nvml.h, nvmlReturn_t)."""
    problem_text: str = ""
    """NVML's message for the problem."""
    simulated: bool = False
    """The GPUs are simulated."""
    read_seconds: float | None = None
    """Seconds of the whole pass, without waiting for a CPU, rounded to 0.1 s; None if not measured."""
