"""Converts Xids that DCGM reports into events, one for each new Xid.

DCGM reports an Xid twice. Field 230 has the latest Xid of each GPU, with the time at which the engine recorded it. The
health check keeps an incident of most serious Xids until the engine is restarted; its start time is known only if it
began during our connection. An incident from before the connection may be of any age, even from before a reset of the
GPU: it is history, which counts only if the GPU confirms it. An Xid that the kernel log or NVML already reported, at
about that time or later, is not repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpuwarden.health.model import Key, gpu
from gpuwarden.health.state import Record
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.dcgm.facts import DcgmFacts, DcgmIncident
from gpuwarden_collectors.event_facts import Source, XidEvent
from gpuwarden_collectors.facts import Stamp

HISTORY_AFTER = 600.0
"""Seconds. An older Xid of a GPU that DCGM did not watch at the previous reading is history, like an old log line."""
_NOTED_WITHIN = 5.0
_REPORTED_WITHIN = 60.0
"""Seconds by which DCGM may be later than the driver: to record an Xid (`_NOTED_WITHIN`), and to report an incident
(samples every 30 s, and a pass)."""


@dataclass(frozen=True, slots=True)
class Known:
    """Recorded Xids of the boot `boot_id`."""

    records: Mapping[Key, Record]
    boot_id: str

    def since(self, slot: str, xid: int, boottime: float) -> bool:
        record = self.records.get(Key("xid", gpu(slot), str(xid)))
        return record is not None and record.boot_id == self.boot_id and record.last.boottime >= boottime


def xids_of(before: DcgmFacts | None, after: DcgmFacts, at: Stamp, recorded: Known) -> list[XidEvent]:
    """Return events of the Xids that are new in `after`, read at `at`, oldest first. `before`: the previous reading."""
    by_xid: dict[tuple[str, int], XidEvent] = {}
    for event in (*_noted(before, after, at, recorded), *_reported(before, after, recorded)):
        by_xid.setdefault((event.slot, event.xid), event)
    return sorted(by_xid.values(), key=lambda event: event.at.boottime)


def _noted(before: DcgmFacts | None, after: DcgmFacts, at: Stamp, recorded: Known) -> Iterator[XidEvent]:
    known_gpus = before.gpus if before else ()
    old = {(g.slot, g.readings.last_xid, g.readings.last_xid_at) for g in known_gpus}
    seen_well = {g.slot for g in known_gpus if g.watched}  # otherwise the engine may report old Xids
    for each in after.gpus:
        xid, noted = each.readings.last_xid, each.readings.last_xid_at
        if not each.slot or not xid or noted is None or (each.slot, xid, noted) in old:
            continue
        age = at.wall - noted
        dated = age > -_NOTED_WITHIN  # else the clock was set back since
        when = Stamp(at.boottime - age, noted) if dated else at
        since = when.boottime - _NOTED_WITHIN if dated else 0.0
        if when.boottime < 0 or recorded.since(each.slot, xid, since):
            continue
        history = each.slot not in seen_well and (age > HISTORY_AFTER or not dated)
        yield _event(when, each.slot, xid, "field 230", history=history)


def _reported(before: DcgmFacts | None, after: DcgmFacts, recorded: Known) -> Iterator[XidEvent]:
    old = {_same(incident) for incident in (before.incidents if before else ())}
    for incident in after.incidents:
        if not incident.slot or not incident.xid or _same(incident) in old:
            continue
        since = 0.0 if incident.preexisting else incident.first_seen.boottime - _REPORTED_WITHIN
        if recorded.since(incident.slot, incident.xid, since):
            continue
        text = f"code {incident.code} of the health check"
        yield _event(incident.first_seen, incident.slot, incident.xid, text, history=incident.preexisting)


def _same(incident: DcgmIncident) -> tuple[str, int | None, Stamp | None]:
    """Return the identity of an incident, without the time if it began before this connection."""
    return incident.slot, incident.xid, None if incident.preexisting else incident.first_seen


def _event(at: Stamp, slot: str, xid: int, where: str, *, history: bool) -> XidEvent:
    text = f"Xid {xid}, as DCGM saw it ({where})"
    return XidEvent(at=at, source=Source.DCGM, slot=slot, xid=xid, text=text, history=history)
