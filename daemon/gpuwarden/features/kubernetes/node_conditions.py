"""Finds which conditions of a Node are gpuwarden's, by the server's record of writers. Pure."""

from __future__ import annotations

from collections.abc import Container

from gpuwarden.base.json_text import parsed
from gpuwarden.features.kubernetes.api import CONDITION_MANAGER, Json, mapping, objects

_LAST_WRITER = frozenset({"f:status", "f:reason"})
"""Fields that show the last writer: each program has reasons of its own, also while all write the same status. The time
does not show it: a program that patches the whole list puts back the times that it read a moment before.
"""


def left_conditions(node: Json, types: Container[str]) -> list[str]:
    """Return the node's conditions that gpuwarden wrote under another configuration."""
    own = own_conditions(node)
    present = [str(entry.get("type")) for entry in objects(mapping(node.get("status")).get("conditions"))]
    return [kind for kind in present if kind in own and kind not in types]


def own_conditions(node: Json) -> set[str]:
    """Return the types of the conditions that gpuwarden wrote last: the server records the writer of each field."""
    fields: Json = {}
    for entry in objects(mapping(node.get("metadata")).get("managedFields")):
        if (entry.get("manager"), entry.get("subresource")) == (CONDITION_MANAGER, "status"):
            status = mapping(mapping(entry.get("fieldsV1")).get("f:status"))
            fields |= mapping(status.get("f:conditions"))
    return {
        kind for name, written in fields.items() if mapping(written).keys() >= _LAST_WRITER and (kind := _kind(name))
    }


def _kind(field: str) -> str:
    """Return the type of a condition from its name in managed fields: `k:{"type":"Ready"}`."""
    return str(mapping(parsed(field.removeprefix("k:"))).get("type", ""))
