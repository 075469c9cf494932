"""Signs in the records of momentary events: Xids, NVSwitch errors, fatal PCIe errors.

A record is seen in the step that brings it, however old its line is (the daemon may have been away), and for `SEEN_FOR`
seconds more, so that a storm is one sighting. What remains of it then is the latch (a failure) or the fall time (a
warning) of its finding.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuwarden.health.inventory import Presence, presence
from gpuwarden.health.look import Look
from gpuwarden.health.model import Advice, Evidence, Json, Severity, Sighting
from gpuwarden.health.state import Record, State, counts
from gpuwarden.health.sxid_catalogue import sxid_row
from gpuwarden.health.view import Sight
from gpuwarden.health.xid_catalogue import XidClass, xid_row
from gpuwarden_collectors.facts import GpuAnswer

SEEN_FOR = 5.0


def recent(state: State, sight: Sight, code: str) -> Iterator[Record]:
    """Records of this boot that are news, or history that a present reading confirms."""
    for record in state.records.values():
        if record.key.code != code or not counts(state, record) or record.key.subject.slot in state.given_up:
            continue
        if record.history:
            if record.key not in state.tracks and _confirmed(record, sight):
                yield record
        elif record.key in state.news or sight.now.boottime - record.last.boottime <= SEEN_FOR:
            yield record


def _confirmed(record: Record, sight: Sight) -> bool:
    """Something is wrong with the GPU now, so that an old line about it still matters."""
    slot = record.key.subject.slot
    facts = sight.gpus.get(slot)
    if facts is None:
        where, _ = presence(slot, sight)
        gone = where is Presence.GONE or (where is Presence.UNLISTED and bool(sight.gpus))  # not the driver as a whole
        return gone and record.key.code == "xid" and slot != ""
    r = facts.readings
    signs = (r.recovery_action, r.ecc_uncorrected_volatile, r.remapped_rows_pending, r.remapped_rows_failure)
    return facts.answer is not GpuAnswer.OK or any(signs)


def _evidence(record: Record, **more: Json) -> Evidence:
    evidence: Evidence = {**more, "text": record.text}
    if record.facility:
        evidence = {**evidence, "written_by": f"a process, not the kernel (facility {record.facility})"}
    return evidence


def _look(state: State, code: str, sightings: list[Sighting]) -> Look:
    return Look(tuple(sightings), frozenset(key.subject for key in state.tracks if key.code == code))


def xid(state: State, sight: Sight) -> Look:
    sightings = []
    for record in recent(state, sight, "xid"):
        row = xid_row(int(record.key.detail))
        if row.klass is XidClass.RECORD:
            continue
        severity = Severity(row.klass.value)
        evidence = _evidence(record, xid=row.xid, meaning=row.meaning)
        sightings.append(Sighting(record.key, evidence, severity, row.advice, count=record.batch))
    return _look(state, "xid", sightings)


def sxid(state: State, sight: Sight) -> Look:
    sightings = []
    for record in recent(state, sight, "sxid"):
        row = sxid_row(int(record.key.detail))
        fatal = row.fatal or record.fatal
        severity, advice = (Severity.FAILURE, Advice.REBOOT) if fatal else (Severity.WARNING, Advice.OBSERVE)
        evidence = _evidence(record, sxid=row.sxid, meaning=row.meaning)
        sightings.append(Sighting(record.key, evidence, severity, advice, count=record.batch))
    return _look(state, "sxid", sightings)


def pcie_aer_fatal(state: State, sight: Sight) -> Look:
    records = recent(state, sight, "pcie_aer_fatal")
    return _look(state, "pcie_aer_fatal", [Sighting(r.key, _evidence(r), count=r.batch) for r in records])
