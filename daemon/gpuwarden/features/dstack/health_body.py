"""The body of `/api/instance/health`, merged from gpuwarden's and the shim's: the worse of both counts.

    {"dcgm": null | {"overall_health": L, "incidents": [{"system", "health": L, "error_message", "error_code",
                                                        "entity_group_id", "entity_id"}, …]}}

dstack's server (0.22.5) treats a level other than 0, 10 and 20, a missing key, or `incidents` that are null as no
response, and a host without a response as unreachable. `dcgm` is null if the shim has no DCGM: the node may then have
any health.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from gpuwarden.base.json_text import parsed_object
from gpuwarden.features.dstack.node_health import Level, NodeHealth

BODY_MOST = 128 << 10
"""Most bytes of the shim's response and its body together. DCGM reports at most 64 incidents, each with a text of some
hundred bytes."""
_SYSTEM_ALL = 0xFFFFFFFF  # DCGM_HEALTH_WATCH_ALL: no particular part of the GPU
_CODE_UNKNOWN = 1  # DCGM_FR_UNKNOWN of dcgm_errors.h
_NUMBERS = ("system", "error_code", "entity_group_id", "entity_id")
_LEVELS = frozenset(map(int, Level))
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=False)
_TEXT_MOST = 500  # characters of gpuwarden's message


@lru_cache(maxsize=4)
def merged(shim: bytes | None, own: NodeHealth) -> bytes | None:
    """Return the body to send; None: send the shim's unchanged. `shim` None: it gave nothing usable."""
    document = None if shim is None else parsed_object(shim)
    if document is None:
        return _encoded({"dcgm": _worse(None, own)})
    dcgm = document.get("dcgm")
    if own.level is Level.PASS and (dcgm is None or _is_sound(dcgm)):
        return None
    try:
        return _encoded({**document, "dcgm": _worse(dcgm, own)})
    except (ValueError, RecursionError):  # a number that is not finite, in an unknown key
        return _encoded({"dcgm": _worse(dcgm, own)})


def _worse(dcgm: Any, own: NodeHealth) -> dict[str, Any] | None:
    theirs = _mended(dcgm) if isinstance(dcgm, Mapping) else None
    if own.level is Level.PASS:
        return theirs or {"overall_health": int(Level.PASS), "incidents": []}
    incident = _incident(own)
    if theirs is None:
        return {"overall_health": incident["health"], "incidents": [incident]}
    first = own.level >= theirs["overall_health"]  # the first one is what dstack's log shows
    incidents = [incident, *theirs["incidents"]] if first else [*theirs["incidents"], incident]
    return {"overall_health": max(theirs["overall_health"], int(own.level)), "incidents": incidents}


def _incident(own: NodeHealth) -> dict[str, Any]:
    return {
        "system": _SYSTEM_ALL,
        "health": int(own.level),
        "error_message": own.message[:_TEXT_MOST],
        "error_code": _CODE_UNKNOWN,
        "entity_group_id": 0,
        "entity_id": 0,
    }


def _is_sound(dcgm: Any) -> bool:
    return (
        isinstance(dcgm, Mapping)
        and _is_level(dcgm.get("overall_health"))
        and isinstance(dcgm.get("incidents"), list)
        and all(isinstance(incident, Mapping) and _is_sound_incident(incident) for incident in dcgm["incidents"])
    )


def _is_sound_incident(incident: Mapping[str, Any]) -> bool:
    numbers = all(type(incident.get(key)) is int for key in _NUMBERS)
    return numbers and _is_level(incident.get("health")) and isinstance(incident.get("error_message"), str)


def _is_level(value: Any) -> bool:
    return type(value) is int and value in _LEVELS


def _mended(dcgm: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document in the form that dstack accepts: an unknown level becomes a warning, a missing text empty."""
    listed = dcgm.get("incidents")
    incidents = (
        [_mended_incident(item) for item in listed if isinstance(item, Mapping)] if isinstance(listed, list) else []
    )
    worst = max([_level(dcgm.get("overall_health", Level.WARN)), *(incident["health"] for incident in incidents)])
    return {"overall_health": worst, "incidents": incidents}


def _mended_incident(incident: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {key: incident[key] if type(incident.get(key)) is int else 0 for key in _NUMBERS}
    message = incident.get("error_message")
    text = message if isinstance(message, str) else ""
    return {**numbers, "health": _level(incident.get("health")), "error_message": text}


def _level(value: Any) -> int:
    return int(value) if _is_level(value) else int(Level.WARN)


def _encoded(document: Mapping[str, Any]) -> bytes:
    """Return the document as a line of JSON. Raises ValueError or RecursionError for what is not JSON."""
    return _ENCODER.encode(document).encode("utf-8", "replace") + b"\n"  # half a character is not JSON to dstack
