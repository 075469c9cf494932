"""The boards in this machine, with what a vendor identifies them by, from each source that still answers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import GpuFacts, slot_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """One GPU. Texts are empty where no source has them."""

    slot: str
    """PCI address."""
    index: str = ""
    """NVML's index."""
    name: str = ""
    """Product name."""
    serial: str = ""
    """Serial number of the board."""
    part: str = ""
    """Part number of the board."""
    uuid: str = ""
    vbios: str = ""
    """Version of the VBIOS."""
    inforom: str = ""
    """Version of the image of the InfoROM."""
    gsp: str = ""
    """Version of the firmware of the GPU system processor."""
    module: str = ""
    """Number of the module on the baseboard."""
    chassis: str = ""
    """Serial number of the chassis, and the slot in it."""
    remapped: str = ""
    """Remapped rows: correctable, uncorrectable, pending, failed."""
    retired: str = ""
    """Retired pages: single bit, double bit, pending."""
    source: str = ""
    """Sources of these texts."""


_SMI = {
    "Product Name": "name",
    "Serial Number": "serial",
    "Board Part Number": "part",
    "GPU UUID": "uuid",
    "VBIOS Version": "vbios",
    "Image Version": "inforom",
    "GSP Firmware Version": "gsp",
    "Module ID": "module",
    "Chassis Serial Number": "chassis",
}
"""Lines of `nvidia-smi -q`, and the attributes that they fill."""
_GPU = re.compile(r"^GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s*$")
_LINE = re.compile(r"^\s+([^:]+?)\s*:\s*(.*?)\s*$")
_NONE = frozenset({"", "N/A", "[N/A]", "Unknown Error", "[Unknown Error]", "GPU is lost", "[GPU is lost]"})
_LENGTH_MOST = 120


def of_box(gpus: Mapping[str, GpuFacts]) -> Iterator[Board]:
    """Yield the boards by the last NVML facts in the black box."""
    for slot, gpu in gpus.items():
        place, readings = gpu.placement, gpu.readings
        rows = (
            readings.remapped_rows_correctable,
            readings.remapped_rows_uncorrectable,
            readings.remapped_rows_pending,
            readings.remapped_rows_failure,
        )
        pages = (readings.retired_pages_single_bit, readings.retired_pages_double_bit, readings.retired_pages_pending)
        yield Board(
            slot=slot,
            index=str(gpu.index),
            name=gpu.name,
            serial=gpu.serial,
            part=gpu.board_part,
            uuid=gpu.uuid,
            vbios=gpu.vbios,
            inforom=gpu.inforom,
            module="" if place.module_id is None else str(place.module_id),
            chassis=" ".join(
                filter(None, (place.chassis_serial, "" if place.chassis_slot is None else f"slot {place.chassis_slot}"))
            ),
            remapped=_counts(("correctable", "uncorrectable", "pending", "failed"), rows),
            retired=_counts(("single bit", "double bit", "pending"), pages),
            source="black box",
        )


def of_smi(text: str) -> Iterator[Board]:
    """Yield the boards that `nvidia-smi -q` lists."""
    board: Board | None = None
    for line in text.splitlines():
        if head := _GPU.match(line):
            if board is not None:
                yield board
            board = Board(slot=slot_of(head[1]), source="nvidia-smi -q")
        elif board is not None and (match := _LINE.match(line)) and (name := _SMI.get(match[1])) is not None:
            value = match[2][:_LENGTH_MOST]
            if value not in _NONE and not getattr(board, name):
                board = replace(board, **{name: value})
    if board is not None:
        yield board


def of_documents(rows: Iterable[Mapping[str, Any]], source: str) -> Iterator[Board]:
    """Yield the boards of the status or the inventory of the daemon."""
    for row in rows:
        index = row.get("index")
        yield Board(
            slot=str(row.get("pci_bus_id") or ""),
            index="" if index is None else str(index),
            name=str(row.get("name") or ""),
            serial=str(row.get("serial") or ""),
            uuid=str(row.get("uuid") or ""),
            source=source,
        )


def together(*sources: Iterable[Board]) -> list[Board]:
    """Merge the boards by slot. Each text comes from the first source that has it."""
    by_slot: dict[str, Board] = {}
    for board in (board for source in sources for board in source if board.slot):
        existing = by_slot.get(board.slot)
        if existing is None:
            by_slot[board.slot] = board
            continue
        new = {
            field.name: getattr(board, field.name)
            for field in fields(Board)
            if not getattr(existing, field.name) and getattr(board, field.name)
        }
        if new:
            by_slot[board.slot] = replace(existing, **new, source=f"{existing.source}, {board.source}")
    return [by_slot[slot] for slot in sorted(by_slot)]


def documents(boards: Iterable[Board]) -> list[dict[str, str]]:
    return [asdict(board) for board in boards]


def _counts(names: tuple[str, ...], counts: tuple[int | None, ...]) -> str:
    return ", ".join(f"{name} {count}" for name, count in zip(names, counts, strict=True) if count is not None)
