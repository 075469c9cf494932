"""Network adapters on the PCI bus: their addresses, drivers, and the width and speed of their links."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TypeVar

from gpuwarden_collectors.host_facts import AdapterFacts, PcieLink
from gpuwarden_collectors.host_files import number, text_or_empty

Number = TypeVar("Number", int, float)
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_GTPS = re.compile(r"(\d{1,3}(?:\.\d{1,2})?) GT/s")


def pci_path(device: Path) -> tuple[str, ...]:
    """Returns the PCI functions from the root port down to this sysfs device; empty if it is not on a PCI bus."""
    return tuple(part for part in os.path.realpath(device).split("/") if _PCI.fullmatch(part))


def driver_of(device: Path) -> str:
    """Returns the name of the device's driver, or "" without one."""
    try:
        return Path(os.readlink(device / "driver")).name[:32]  # noqa: PTH115 - a link, not where it leads
    except OSError:
        return ""


def adapter(rdma: Path, name: str) -> AdapterFacts:
    """The adapter of the RDMA device `name`, whose folder in sysfs is `rdma`.

    A PCIe switch has an upstream and a downstream port without a link between them. Therefore every second step from
    the adapter upwards is a link.
    """
    folder = Path(os.path.realpath(rdma / "device"))
    functions = pci_path(rdma / "device")
    folders = [folder, *folder.parents][: len(functions)]
    links = tuple(_link(folders[n], folders[n + 1]) for n in range(0, len(folders) - 1, 2))
    return AdapterFacts(
        slot=functions[-1] if functions else "",
        device=name,
        board=text_or_empty(rdma / "board_id")[:32],
        firmware=text_or_empty(rdma / "fw_ver")[:32],
        upstream=functions[:-1],
        links=links,
    )


def _link(lower: Path, upper: Path) -> PcieLink:
    return PcieLink(
        at=lower.name,
        width=_lanes(lower / "current_link_width"),
        width_max=_less(_lanes(lower / "max_link_width"), _lanes(upper / "max_link_width")),
        gtps=_speed(lower / "current_link_speed"),
        gtps_max=_less(_speed(lower / "max_link_speed"), _speed(upper / "max_link_speed")),
    )


def _less(first: Number | None, second: Number | None) -> Number | None:
    return None if first is None or second is None else min(first, second)


def _lanes(file: Path) -> int | None:
    """Number of lanes, or None for 0 and 255, which sysfs shows for an absent link."""
    lanes = number(text_or_empty(file))
    return lanes if lanes is not None and 0 < lanes <= 32 else None


def _speed(file: Path) -> float | None:
    match = _GTPS.match(text_or_empty(file))
    return float(match[1]) if match else None
