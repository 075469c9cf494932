"""The NVIDIA functions on the PCI bus, from sysfs: links, error counts, and whether they respond.

The vendor of a function never changes, and sysfs creates a new inode for each function that appears in a slot.
Therefore functions of other vendors are remembered by name and inode: a pass over a host with hundreds of them costs
one directory listing and some dozen small files per NVIDIA function, and hot-plugged devices are detected.

A function can disappear or be replaced at any time. It is read through a handle on its folder, and the result is used
if the slot still leads to that folder afterwards; otherwise the function is read again.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from gpuwarden_collectors.base import CollectorError, SourceAbsent
from gpuwarden_collectors.facts import slot_of
from gpuwarden_collectors.pci_facts import PciDevice, PciFacts, PciKind

_NVIDIA = "0x10de"
_KINDS = {"0x0300": PciKind.GPU, "0x0302": PciKind.GPU, "0x0680": PciKind.SWITCH}  # by class and subclass
_WIDTHS = frozenset({1, 2, 4, 8, 12, 16, 32})  # lanes; the kernel shows 0, 63 or 255 for "unknown"
_SPEED = re.compile(r"(\d{1,3}(?:\.\d)?) GT/s")
_ID = re.compile(r"0x[0-9a-f]{4,6}")
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_DEEPEST = 16  # ports above a device; the deepest servers have 7
_NOBODY = b"\xff\xff\xff\xff"  # what a read returns when no device answers it
_PAGE = 4096  # no sysfs attribute is longer
_ATTEMPTS = 10  # for a function that is replaced while it is read


AGAIN_AFTER = 2.0
"""Seconds: twice the time for which a function in reset may read as all ones (PCI Express, Conventional Reset)."""


class _Vanished(Exception):  # noqa: N818 - normal on a bus, no error
    """The function was listed but has disappeared."""


class PciCollector:
    """Reads `<sysfs>/bus/pci/devices`. Fails with more than `max_functions` entries: GPUs could be missing otherwise.

    A function that does not respond is read again `again_after` seconds later, and only then reported as not
    responding.
    """

    def __init__(self, sysfs: Path, *, max_functions: int = 16384, again_after: float = AGAIN_AFTER) -> None:
        self._again_after = again_after
        self._devices = sysfs / "bus/pci/devices"
        self._max_functions = max_functions
        self._others: dict[str, int] = {}  # inodes of functions of other vendors, by name

    def read(self) -> PciFacts:
        """Reads every NVIDIA function, ordered by slot. May block while the kernel waits for a device, as in a reset.

        Raises SourceAbsent on a host without a PCI bus, CollectorError if sysfs cannot be read.
        """
        others: dict[str, int] = {}
        devices: list[PciDevice] = []
        for name, inode in self._listing():
            try:
                device = None if self._others.get(name) == inode else _read_device(self._devices / name)
            except _Vanished:
                continue
            if device is None:
                others[name] = inode
            else:
                devices.append(device)
        self._others = others
        return PciFacts(devices=tuple(sorted(self._confirmed(devices), key=lambda device: device.slot)))

    def _confirmed(self, devices: list[PciDevice]) -> Iterator[PciDevice]:
        if any(device.responds is False for device in devices):
            time.sleep(self._again_after)
        for device in devices:
            try:
                again = _read_device(self._devices / device.slot) if device.responds is False else device
            except _Vanished:
                continue
            if again is not None:
                yield again

    def _listing(self) -> list[tuple[str, int]]:
        try:
            with os.scandir(self._devices) as entries:
                listing = [(entry.name, entry.inode()) for entry in islice(entries, self._max_functions + 1)]
        except (FileNotFoundError, NotADirectoryError) as error:
            raise SourceAbsent(f"no PCI bus: {self._devices} does not exist") from error
        except OSError as error:
            raise CollectorError(
                f"cannot list the PCI functions in {self._devices}: {error.strerror}; let gpuwarden read sysfs"
            ) from error
        if len(listing) > self._max_functions:
            raise CollectorError(
                f"cannot take the PCI inventory: {self._devices} lists more than {self._max_functions} functions; "
                "check that it is a sysfs"
            )
        return listing


def _read_device(path: Path) -> PciDevice | None:
    """Reads the NVIDIA function in this slot; returns None for another vendor's. Raises _Vanished.

    Raises CollectorError if its identity cannot be read: skipping it would report a GPU as missing.
    """
    for _ in range(_ATTEMPTS):
        folder = _open(path)
        try:
            vendor, klass, device_id = (_text(folder, name) for name in ("vendor", "class", "device"))
            readable = all(_ID.fullmatch(text) for text in (vendor, klass, device_id))
            device = _describe(folder, path, klass, int(device_id, 16)) if readable and vendor == _NVIDIA else None
            if not _leads_to(path, folder):
                continue
        finally:
            os.close(folder)
        if not readable:
            raise CollectorError(f"cannot identify {path}: vendor, class or device unreadable; is this a sysfs?")
        return device
    raise _Vanished


def _describe(folder: int, path: Path, klass: str, device_id: int) -> PciDevice | None:
    try:
        slot = slot_of(path.name)
    except ValueError:
        return None
    # A virtual function (SR-IOV) has the class of its GPU, but must not be expected as a GPU.
    kind = PciKind.OTHER if _link(folder, "physfn") else _KINDS.get(klass[:6], PciKind.OTHER)
    driver = _link(folder, "driver")
    if "vfio" in driver:  # It belongs to a guest: reading would wake it up, or block during a reset.
        return PciDevice(slot=slot, kind=kind, device_id=device_id, driver=driver)
    return PciDevice(
        slot=slot,
        kind=kind,
        device_id=device_id,
        driver=driver,
        responds=_responds(_read(folder, "config", 4)),
        speed=_speed(_text(folder, "current_link_speed")),
        speed_max=_speed(_text(folder, "max_link_speed")),
        width=_width(_text(folder, "current_link_width")),
        width_max=_width(_text(folder, "max_link_width")),
        aer_correctable=_total(_text(folder, "aer_dev_correctable")),
        aer_nonfatal=_total(_text(folder, "aer_dev_nonfatal")),
        aer_fatal=_total(_text(folder, "aer_dev_fatal")),
        upstream=_upstream(path),
    )


def _upstream(path: Path) -> tuple[str, ...]:
    """Returns the ports above a device, from its link to `…/devices/pci0000:00/0000:00:01.0/0000:01:00.0`."""
    try:
        parts = os.readlink(path).split("/")  # noqa: PTH115 - the path of the device is in the text of the link
    except OSError:
        return ()
    return tuple(slot_of(part) for part in parts[:-1] if part != path.name and _ADDRESS.fullmatch(part))[:_DEEPEST]


def _leads_to(path: Path, folder: int) -> bool:
    """True if the slot still leads to the opened folder, so that all values belong to the same function."""
    try:
        return os.path.samestat(path.stat(), os.fstat(folder))
    except OSError:
        return False


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _Vanished from error
    except OSError as error:
        raise CollectorError(f"cannot open the PCI function {path}: {error.strerror}") from error


def _read(folder: int, name: str, size: int = _PAGE) -> bytes:
    """Reads up to `size` bytes of an attribute; empty if it is missing or cannot be read."""
    try:
        attribute = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return b""
    try:
        return os.read(attribute, size)
    except OSError:
        return b""
    finally:
        os.close(attribute)


def _text(folder: int, name: str) -> str:
    return _read(folder, name).decode("ascii", "replace").strip()


def _link(folder: int, name: str) -> str:
    try:
        return os.readlink(name, dir_fd=folder).rpartition("/")[2]
    except OSError:
        return ""


def _speed(text: str) -> float | None:
    """Parses GT/s from `32.0 GT/s PCIe` (older kernels: `8 GT/s`); None for `Unknown speed` or a bus without PCIe."""
    match = _SPEED.match(text)
    return float(match[1]) if match else None


def _width(text: str) -> int | None:
    width = int(text) if text.isdecimal() else 0
    return width if width in _WIDTHS else None


def _total(text: str) -> int | None:
    """The number in the line `TOTAL_ERR_… n` of an AER attribute (kernel ABI, sysfs-bus-pci-devices-aer)."""
    totals = [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith("TOTAL_ERR")]
    return int(totals[0]) if totals and totals[0].isdecimal() else None


def _responds(head: bytes) -> bool | None:
    return head != _NOBODY if len(head) == len(_NOBODY) else None
