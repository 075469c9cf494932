"""The incidents of health checks, each with the time at which this connection first saw it.

The engine reports an Xid incident until the engine restarts, across GPU resets and reconnects of clients. The time of
the first sighting distinguishes "still reported" from "still broken". Such latched incidents are remembered while
their GPU is lost and not reported, so they do not count as new when it returns. Incidents of a GPU that this
connection checks for the first time may be of any age.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from gpuwarden_collectors.dcgm.engine import GPU, text_of
from gpuwarden_collectors.dcgm.facts import DcgmIncident
from gpuwarden_collectors.facts import Stamp

_NVLINK_DOWN, _XID_ERROR = 14, 101  # dcgm_errors.h: DCGM_FR_*
_XIDS = {81: 95, 120: 79, 131: 94}
"""Xid by DCGM's error code (DcgmHealthWatch.cpp, BuildXidMappings)."""
_XID = re.compile(r"\bXID (\d{1,4})\b")
_LINK = re.compile(r"\blink (\d{1,3})\b", re.IGNORECASE)


class _Key(NamedTuple):
    entity_kind: int
    entity_id: int
    code: int
    xid: int | None
    link: int | None


class _Beginning(NamedTuple):
    at: Stamp
    preexisting: bool


class Incidents:
    """The incidents that one connection reports."""

    def __init__(self) -> None:
        self._begun: dict[_Key, _Beginning] = {}
        self._checked: set[int] = set()
        self._first = True

    def of(
        self, responses: Iterable[Any], slots: Mapping[int, str], now: Stamp, checked: Collection[int]
    ) -> tuple[DcgmIncident, ...]:
        """Returns all incidents of one pass.

        `responses` are c_dcgmHealthResponse, `slots` is by id of the GPU, `checked` has the ids of the GPUs that were
        checked.
        """
        keyed = [(raw, _key(raw)) for response in responses for raw in _raw(response)]
        beginnings = {key: self._begun.get(key) or _Beginning(now, self._was_there(key)) for _, key in keyed}
        kept = {key: begun for key, begun in self._begun.items() if _latched(key)}
        self._begun = kept | beginnings
        self._checked.update(checked)
        self._first = False
        return tuple(_incident(raw, key, beginnings[key], slots) for raw, key in keyed)

    def _was_there(self, key: _Key) -> bool:
        return key.entity_id not in self._checked if key.entity_kind == GPU else self._first


def _raw(response: Any) -> Iterator[Any]:
    for index in range(min(response.incidentCount, len(response.incidents))):
        yield response.incidents[index]


def _key(raw: Any) -> _Key:
    return _Key(raw.entityInfo.entityGroupId, raw.entityInfo.entityId, raw.error.code, *xid_and_link(raw))


def xid_and_link(raw: Any) -> tuple[int | None, int | None]:
    """The Xid and the link of an incident, from its code or text; None where they do not name one."""
    code, text = raw.error.code, text_of(raw.error, "msg")
    xid = _XID.search(text)
    link = _LINK.search(text) if code == _NVLINK_DOWN else None
    return int(xid[1]) if xid else _XIDS.get(code), int(link[1]) if link else None


def _latched(key: _Key) -> bool:
    return key.xid is not None or key.code == _XID_ERROR


def _incident(raw: Any, key: _Key, begun: _Beginning, slots: Mapping[int, str]) -> DcgmIncident:
    return DcgmIncident(
        system=raw.system,
        health=raw.health,
        code=key.code,
        entity_kind=key.entity_kind,
        entity_id=key.entity_id,
        first_seen=begun.at,
        message=text_of(raw.error, "msg"),
        slot=slots.get(key.entity_id, "") if key.entity_kind == GPU else "",
        xid=key.xid,
        link=key.link,
        latched=_latched(key),
        preexisting=begun.preexisting,
    )
