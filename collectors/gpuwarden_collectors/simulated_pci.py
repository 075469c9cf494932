"""Writes a simulated sysfs tree of PCI functions, which `PciCollector` reads under `--simulate` and in tests.

Each state of a function is a separate folder, which is filled before one rename redirects the link in
`bus/pci/devices` to it. The target of the link is always complete, and a reader detects the change and reads again.
"""

from __future__ import annotations

import shutil
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gpuwarden_collectors.pci_facts import PciDevice, PciKind

_CLASSES = {PciKind.GPU: "0x030200", PciKind.SWITCH: "0x068000", PciKind.OTHER: "0x040300"}
_NVIDIA = 0x10DE
_HEADER = 64  # bytes of configuration space that any user may read


def h100(slot: str) -> PciDevice:
    """A healthy H100 SXM5: 10de:2330, 16 lanes of PCIe 5.0."""
    return PciDevice(
        slot=slot,
        kind=PciKind.GPU,
        device_id=0x2330,
        driver="nvidia",
        responds=True,
        speed=32.0,
        speed_max=32.0,
        width=16,
        width_max=16,
        aer_correctable=0,
        aer_nonfatal=0,
        aer_fatal=0,
    )


def write_tree(root: Path, devices: Sequence[PciDevice]) -> None:
    """Makes `root` a sysfs with exactly these functions. Changes one at a time, each atomically."""
    links = _links(root)
    links.mkdir(parents=True, exist_ok=True)
    for device in devices:
        write_device(root, device)
    for slot in {link.name for link in links.iterdir()} - {device.slot for device in devices}:
        remove_device(root, slot)


def write_device(root: Path, device: PciDevice) -> None:
    """Adds a function to the tree of `write_tree`, or replaces the one in its slot.

    None is written in the kernel's way: an unknown link, a missing attribute. `responds=False` is a configuration
    space of all ones.
    """
    link = _links(root) / device.slot
    states = root / "devices" / device.slot
    states.mkdir(parents=True, exist_ok=True)
    state = Path(tempfile.mkdtemp(dir=states))
    _fill(state, device)
    swing = states / "next"
    swing.unlink(missing_ok=True)
    swing.symlink_to(Path("../../../devices") / device.slot / state.name)
    swing.replace(link)
    for older in states.iterdir():
        if older != state:
            shutil.rmtree(older)


def remove_device(root: Path, slot: str) -> None:
    """Removes a function, like a surprise removal. No-op if it does not exist."""
    (_links(root) / slot).unlink(missing_ok=True)


def _links(root: Path) -> Path:
    return root / "bus/pci/devices"


def _fill(folder: Path, device: PciDevice) -> None:
    if device.driver:
        (folder / "driver").symlink_to(Path("../../../bus/pci/drivers") / device.driver)
    if device.responds is not None:
        (folder / "config").write_bytes(_config(device))
    for name, text in _attributes(device).items():
        (folder / name).write_text(f"{text}\n", encoding="ascii")


def _config(device: PciDevice) -> bytes:
    return struct.pack("<HH", _NVIDIA, device.device_id).ljust(_HEADER, b"\0") if device.responds else b"\xff" * _HEADER


def _attributes(device: PciDevice) -> dict[str, str]:
    counters = {
        "correctable": ("TOTAL_ERR_COR", device.aer_correctable),
        "nonfatal": ("TOTAL_ERR_NONFATAL", device.aer_nonfatal),
        "fatal": ("TOTAL_ERR_FATAL", device.aer_fatal),
    }
    return {
        "vendor": f"{_NVIDIA:#06x}",
        "device": f"{device.device_id:#06x}",
        "class": _CLASSES[device.kind],
        "current_link_speed": _speed(device.speed),
        "max_link_speed": _speed(device.speed_max),
        "current_link_width": str(device.width or 0),
        "max_link_width": str(device.width_max or 255),
    } | {f"aer_dev_{name}": f"{line} {total}" for name, (line, total) in counters.items() if total is not None}


def _speed(speed: float | None) -> str:
    return "Unknown" if speed is None else f"{speed:.1f} GT/s PCIe"
