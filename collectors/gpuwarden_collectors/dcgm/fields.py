"""The fields that are read through DCGM, by number (DCGM 4.6 changed names, but numbers are stable), and their values.

DCGM marks a missing value by a status in addition to the value, or by a value at the end of the type's range. This
module converts both to None.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.dcgm.engine import GPU, Entity, text_of

NODE: Entity = (0, 0)  # DCGM_FE_NONE: what belongs to no GPU
_INT64_BLANK = 0x7FFFFFFFFFFFFFF0  # dcgm_structs.h: DCGM_INT64_BLANK; not found, not supported, not permitted follow it
_INT32_BLANK = 0x7FFFFFF0
_FP64_BLANK = 140737488355328.0  # DCGM_FP64_BLANK

Values = dict[str, Any]
"""Values by attribute of DcgmReadings or DcgmFacts, each of the attribute's type."""


@dataclass(frozen=True, slots=True)
class Field:
    """A DCGM field.

    `into` is the attribute of DcgmReadings, or of DcgmFacts for the node. Numbers from `below` on mean "no value".
    """

    id: int
    into: str
    kind: type[int | float | str] = int
    below: int = _INT32_BLANK


GPU_FIELDS: tuple[Field, ...] = (
    Field(150, "temperature"),
    Field(230, "last_xid"),
    Field(1507, "memory_unrepairable"),
    Field(1523, "recovery_action"),
)
NODE_FIELDS: tuple[Field, ...] = (Field(1502, "imex_domain", str), Field(1503, "imex_daemon"))
PROFILING: tuple[Field, ...] = (
    Field(1001, "graphics_active", float),
    Field(1002, "sm_active", float),
    Field(1003, "sm_occupancy", float),
    Field(1004, "tensor_active", float),
    Field(1005, "dram_active", float),
    Field(1009, "pcie_tx_bytes", float, _INT64_BLANK),
    Field(1010, "pcie_rx_bytes", float, _INT64_BLANK),
    Field(1011, "nvlink_tx_bytes", float, _INT64_BLANK),
    Field(1012, "nvlink_rx_bytes", float, _INT64_BLANK),
)
"""Fields that NVML (GPM) provides from Hopper on; read from DCGM, so that dashboards work for older GPUs, too."""

_LAST_XID = 230
_BY_ID = {field.id: field for field in (*GPU_FIELDS, *NODE_FIELDS, *PROFILING)}


def ids(fields: Iterable[Field]) -> list[int]:
    return [field.id for field in fields]


def by_entity(values: Iterable[Any]) -> dict[Entity, Values]:
    """Groups the fields that have a value by entity. `values` are c_dcgmFieldValue_v2."""
    grouped: dict[Entity, Values] = {}
    for value in values:
        field = _BY_ID.get(value.fieldId)
        decoded = None if field is None else _decoded(field, value)
        if field is None or decoded is None:
            continue
        entity = NODE if value.entityGroupId != GPU else (GPU, value.entityId)
        attributes = grouped.setdefault(entity, {})
        attributes[field.into] = decoded
        if field.id == _LAST_XID:
            attributes["last_xid_at"] = value.ts / 1_000_000
    return grouped


def _decoded(field: Field, value: Any) -> int | float | str | None:
    """Returns the value of a field, or None if it has no value or one of an unexpected type."""
    if value.status != 0:
        return None
    kind = chr(value.fieldType & 0xFF)  # dcgm_fields.h: DCGM_FT_*
    if field.kind is str:
        return text_of(value.value, "str") or None if kind == "s" else None
    if kind == "d":
        number: int | float = value.value.dbl
        if field.kind is int or not math.isfinite(number) or number >= _FP64_BLANK:
            return None
    elif kind == "i":
        number = value.value.i64
    else:
        return None
    return number if number < field.below else None
