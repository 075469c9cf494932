"""Rules for related Xids: a consequence or a detail of another Xid is no separate finding."""

from __future__ import annotations

from gpuwarden.health.memory import Record, State, counts
from gpuwarden.health.model import Advice, Key
from gpuwarden.health.view import Sight
from gpuwarden.health.xid.catalogue import Xid, XidClass
from gpuwarden.health.xid.lines import UNNAMED, followed
from gpuwarden.health.xid.ruling import Ruling, newest_signs, of_boot, plain

WITHIN = 10.0
"""Seconds between an Xid 48 and its details. They are logged within one second; the rest is for slow readers."""
CAUSE_WITHIN = 60.0
"""Seconds before an Xid 45 in which its cause is searched. A job is torn down on all its GPUs within that time."""
DETAILS_OF_48 = (63, 94, 171, 172)
CANCELS = {"162": "163"}
"""Key: an Xid. Value: the Xid of the same GPU whose finding it ends."""


def cleanup(state: State, _: Sight, record: Record, row: Xid) -> Ruling:
    """Return the ruling on an Xid 45. Unless its line names the cause, any error of the node counts: jobs span GPUs."""
    signs = newest_signs(record)
    if causes := [cause for sign in signs if (cause := followed(sign))]:
        return Ruling(row.klass, row.advice, {"after": " ".join(causes)})
    if signs != (UNNAMED,) or _cause(state, record):
        return plain(row)
    return Ruling(XidClass.WARNING, Advice.RESTART_SERVICE, {"after": "nothing: no other Xid, no reset, no process"})


def _cause(state: State, record: Record) -> bool:
    began = record.bursts[-1].began if record.bursts else record.last.boottime
    first, last = began - CAUSE_WITHIN, record.last.boottime + WITHIN
    errors = (
        (burst.began, burst.ended)
        for other in state.records.values()
        if other.boot_id == record.boot_id and (other.key.code, other.key.detail) not in (("xid", "45"), ("xid", "154"))
        for burst in other.bursts
    )
    resets = ((at.boottime, at.boottime) for at in state.resets.values())
    return any(began <= last and ended >= first for began, ended in (*errors, *resets))


def detail_of_48(state: State, sight: Sight, record: Record, row: Xid) -> Ruling:
    """Return the ruling on an Xid 63, 94, 171 or 172. A 48 of the same GPU covers it unless the site ignores 48."""
    partner = state.records.get(Key("xid", record.key.subject, "48"))
    rule = sight.rules.xids.get("48")
    heard = rule is None or rule.severity != XidClass.RECORD.value
    if heard and partner is not None and counts(state, partner) and _together(partner, record):
        return Ruling(XidClass.RECORD, row.advice, {"with": "48"})
    return plain(row)


def double_bit(state: State, _: Sight, record: Record, row: Xid) -> Ruling:
    """Return the ruling on an Xid 48, with the Xids of the same GPU that accompany it as evidence."""
    partners = [
        other.key.detail
        for other in of_boot(state, record)
        if other.key.subject == record.key.subject and other.key != record.key and _together(other, record)
    ]
    return Ruling(row.klass, row.advice, {"with": " ".join(sorted(partners, key=int))} if partners else {})


def _together(record: Record, other: Record) -> bool:
    return record.boot_id == other.boot_id and abs(record.last.boottime - other.last.boottime) <= WITHIN


def ended(state: State, _: Sight, record: Record, row: Xid) -> Ruling:
    """Return the ruling on an Xid 163, which a later 162 ends."""
    ends = {cancelled: number for number, cancelled in CANCELS.items()}
    end = state.records.get(Key("xid", record.key.subject, ends[record.key.detail]))
    if end is not None and end.boot_id == record.boot_id and end.last >= record.last:
        return Ruling(XidClass.RECORD, Advice.NONE, {"ended_by": f"Xid {end.key.detail}"}, over=True)
    return plain(row)
