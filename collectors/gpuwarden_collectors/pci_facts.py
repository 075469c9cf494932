"""Facts about the PCI bus: its NVIDIA functions, as sysfs shows them. No verdicts."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from gpuwarden_collectors.dataclass import dataclass


class PciKind(StrEnum):
    GPU = "gpu"  # class 0x0300 (VGA) or 0x0302 (3D controller)
    SWITCH = "switch"  # class 0x0680: NVSwitch
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class PciDevice:
    """One NVIDIA function in sysfs. AER totals are cumulative since boot."""

    slot: str
    """PCI address."""
    kind: PciKind
    """Kind of the function, by its class code."""
    device_id: int
    driver: str = ""
    """Name of the driver that it is bound to; empty if none."""
    responds: bool | None = None
    """False: its configuration space reads 0xFFFFFFFF; None: it could not be read."""
    speed: float | None = None
    """Current link speed, GT/s."""
    speed_max: float | None = None
    """Highest link speed of the device, GT/s."""
    width: int | None = None
    """Current link width, lanes."""
    width_max: int | None = None
    """Largest link width of the device, lanes."""
    aer_correctable: int | None = None
    """Correctable errors."""
    aer_nonfatal: int | None = None
    """Uncorrectable errors that are not fatal."""
    aer_fatal: int | None = None
    """Fatal errors."""
    upstream: tuple[str, ...] = ()
    """Addresses of the ports above it, from the root port down; empty if sysfs does not show them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PciFacts:
    """One pass over the PCI bus."""

    collector: ClassVar[str] = "pci"
    devices: tuple[PciDevice, ...] = ()
    """The NVIDIA functions, in order of their addresses."""
