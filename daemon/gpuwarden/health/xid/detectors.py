"""Detectors for momentary events: Xids, NVSwitch errors, fatal PCIe errors.

A record is sighted in the step that adds it, however old its line is (the daemon may have been down), and for
`SEEN_FOR` seconds after the line, so that a storm is one sighting. After that the latch (a failure) or the fall time (a
warning) keeps its finding. A line that arrives while its finding is latched adds to its count and time (`fold`) and is
no sighting, so a storm with a line every ten seconds does not renew the latch every ten seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuwarden.health.detection import Detection, tracked_detection
from gpuwarden.health.inventory import Presence, presence
from gpuwarden.health.memory import Record, State, buried, counts
from gpuwarden.health.model import Advice, Evidence, Json, Latch, Severity, Sighting
from gpuwarden.health.view import Sight
from gpuwarden.health.xid.catalogue import XidClass, xid_row
from gpuwarden.health.xid.rules import ruling, unread
from gpuwarden.health.xid.ruling import Ruling, of_site
from gpuwarden.health.xid.sxid_catalogue import sxid_row
from gpuwarden.health.xid.sxid_rules import AFTER, GPU_WITHIN, sxid_ruling
from gpuwarden.health.xid.witnesses import ASKED_FOR, asked_since, contradicted, is_fallen
from gpuwarden_collectors.facts import GpuAnswer
from gpuwarden_collectors.host_facts import InfinibandFacts
from gpuwarden_collectors.pci_facts import PciKind

SEEN_FOR = 5.0
UNREAD_FOR = 120.0
"""Seconds for which a bare number without its log line stays sighted: longer than any pause between two steps."""


def recent(state: State, sight: Sight, code: str) -> Iterator[Record]:
    """Yield records that are new in this boot, and historic ones that a current reading confirms."""
    for record in state.records.values():
        if record.key.code != code or not counts(state, record) or record.key.subject.slot in state.given_up:
            continue
        if record.history:
            if record.key not in state.tracks and _confirmed(record, sight):
                yield record
        elif record.key in state.moments.news or (_seen(state, record, sight) and not buried(state, record.key)):
            yield record


def _seen(state: State, record: Record, sight: Sight) -> bool:
    age = sight.now.boottime - record.last.boottime
    if is_fallen(record.key) and (record.key not in state.tracks or contradicted(state, record.key)):
        return sight.now.boottime - asked_since(state, record) <= ASKED_FOR
    return age <= (UNREAD_FOR if record.key.code == "xid" and unread(record) else SEEN_FOR)


def _confirmed(record: Record, sight: Sight) -> bool:
    """Return True if the GPU has a fault now, so that an old line about it still matters."""
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
    return {**more, "text": record.text}


def _sighting(state: State, record: Record, decided: Ruling, evidence: Evidence) -> Sighting | None:
    """Return the sighting of a record; None if it is only recorded or would not change the finding.

    A failure never becomes milder. An error that recurs after a reset is reported again, since the reset did not help.
    """
    if decided.klass is XidClass.RECORD:
        return None
    severity, track = Severity(decided.klass.value), state.tracks.get(record.key)
    if track is not None and track.latch is not Latch.NONE and track.released is None:
        reset = state.resets.get(record.key.subject.slot)
        in_vain = reset is not None and reset > track.first_seen
        milder = severity is Severity.WARNING and track.severity is Severity.FAILURE
        if milder or (track.latched and severity is track.severity and not in_vain):
            return None
    return Sighting(record.key, {**evidence, **decided.evidence}, severity, decided.advice, count=record.batch)


def xid(state: State, sight: Sight) -> Detection:
    sightings = []
    for record in recent(state, sight, "xid"):
        if (decided := ruling(state, sight, record)) is not None:
            row = xid_row(int(record.key.detail))
            evidence = _evidence(record, xid=row.xid, meaning=row.meaning)
            sightings.append(_sighting(state, record, decided, evidence))
    return tracked_detection("xid", state, [each for each in sightings if each is not None])


def sxid(state: State, sight: Sight) -> Detection:
    sightings = []
    new_records = list(recent(state, sight, "sxid"))
    for record in (*new_records, *_pending(state, sight, new_records)):
        row = sxid_row(int(record.key.detail))
        table = sxid_ruling(state, record, row)
        if table.klass is not XidClass.FAILURE and record not in new_records:
            continue
        decided = of_site(table, sight.rules.sxids.get(record.key.detail), Advice.REBOOT)
        sightings.append(_sighting(state, record, decided, _evidence(record, sxid=row.sxid, meaning=row.meaning)))
    return tracked_detection("sxid", state, [each for each in sightings if each is not None])


def _pending(state: State, sight: Sight, new_records: Sequence[Record]) -> Iterator[Record]:
    """Yield records of warnings that become failures if a GPU has a fault within `GPU_WITHIN` of the line.

    Skip warnings whose lines came after the loss of a GPU, since its return makes nothing worse.
    """
    for track in state.tracks_of("sxid"):
        record = state.records.get(track.key)
        after_loss = AFTER in track.evidence
        if (
            record is None
            or record in new_records
            or record.history
            or after_loss
            or track.severity is Severity.FAILURE
        ):
            continue
        if counts(state, record) and 0.0 <= sight.now.boottime - record.last.boottime <= GPU_WITHIN:
            yield record


def pcie_aer_fatal(state: State, sight: Sight) -> Detection:
    records = recent(state, sight, "pcie_aer_fatal")
    sightings = [Sighting(r.key, _evidence(r, **_below(sight, r.key.subject.slot)), count=r.batch) for r in records]
    return tracked_detection("pcie_aer_fatal", state, sightings)


def _below(sight: Sight, slot: str) -> dict[str, Json]:
    """Return the network adapters at or below this PCI address, and the GPUs below it."""
    facts = sight.fresh(InfinibandFacts)
    adapters = () if facts is None else [each.device for each in facts.adapters if slot in (each.slot, *each.upstream)]
    devices = sight.view.pci.facts.devices if sight.view.pci.facts else ()
    gpus = [device.slot for device in devices if device.kind is PciKind.GPU and slot in device.upstream]
    return {name: ", ".join(below) for name, below in (("adapters", adapters), ("gpus", gpus)) if below}
