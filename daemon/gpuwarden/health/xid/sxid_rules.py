"""Classifies a record of an SXid by its row in the table, its line, repeats, and the state of the node's GPUs.

| the line | class |
|---|---|
| Fatal, or without severity and fatal in the table | a failure; a warning within a minute after a GPU was lost, since the switch logs the end of its links |
| Non-fatal, of a number that is fatal in the table | a warning; a failure at the second occasion of a day at one port, or if a GPU is affected within ten minutes |
| of a number that fleets see on healthy hosts | a record; a warning from the fifth burst of a day on |
| any other | a warning |

A GPU is affected if it has an NVLink Xid or an Xid that is a failure, an inactive link, or does not answer. Any GPU of
the node counts, since no source shows which GPU is behind which port. The site's rule for a number takes precedence.
"""

from __future__ import annotations

from gpuwarden.health.memory import Record, State, Track
from gpuwarden.health.model import Evidence, Severity
from gpuwarden.health.xid.bursts import OF_A_DAY
from gpuwarden.health.xid.catalogue import XidClass
from gpuwarden.health.xid.repeats import BURSTS_OF_A_DAY
from gpuwarden.health.xid.ruling import Ruling
from gpuwarden.health.xid.sxid_catalogue import Sxid
from gpuwarden.health.xid.sxid_catalogue import advice as sxid_advice
from gpuwarden.health.xid.sxid_ports import DAY, again
from gpuwarden.health.xid.witnesses import CONTRADICTED, is_fallen
from gpuwarden_collectors.facts import Stamp

GPU_WITHIN = 600.0
"""Seconds between a line and the fault of a GPU. NVML or the job notices a hung GPU behind a port within this time."""
LOST_WITHIN = 60.0
"""Seconds after the loss of a GPU in which the switches log errors of its links (12 s in leptonai/gpud's example)."""
NVLINK_XIDS = frozenset({"74", *map(str, range(144, 151))})
AFTER = "after"
"""Evidence key: the finding of the lost GPU that the lines followed."""
NO_ANSWER = ("gpu_missing", "gpu_unresponsive", "gpu_reset_required", "gpu_recovery_action", "driver_unresponsive")


AGAIN = "again at the same port more than three minutes later, or with a GPU that suffers within ten minutes"


def first_class(row: Sxid, fatal: bool | None) -> XidClass:
    """Return the class of the first line of a number. `fatal`: severity in the line; None if it has none."""
    if fatal or (row.fatal and fatal is None and not row.listed_nonfatal):
        return XidClass.FAILURE
    return XidClass.RECORD if row.harmless else XidClass.WARNING


def sxid_ruling(state: State, record: Record, row: Sxid) -> Ruling:
    klass = first_class(row, True if record.fatal else False if record.nonfatal else None)
    if klass is XidClass.FAILURE:
        return _fatal(state, record)
    if row.fatal:
        return _nonfatal(state, record)
    often = sum(record.last.boottime - burst.ended <= DAY for burst in record.bursts)
    evidence: Evidence = {OF_A_DAY: often} if often > 1 else {}
    return Ruling(XidClass.WARNING if often >= BURSTS_OF_A_DAY else klass, sxid_advice(fatal=False), evidence)


def _fatal(state: State, record: Record) -> Ruling:
    lost = next((t for t in _near(state, record, LOST_WITHIN) if _is_lost(t) and t.first_seen <= record.last), None)
    if lost is not None:
        return Ruling(XidClass.WARNING, sxid_advice(fatal=False), {AFTER: str(lost.key)})
    return Ruling(XidClass.FAILURE, sxid_advice(fatal=True))


def _nonfatal(state: State, record: Record) -> Ruling:
    port = again(record.ports)
    hurt = next((t for t in _near(state, record, GPU_WITHIN) if _suffers(t)), None)
    evidence: Evidence = {}
    if port is not None:
        evidence = {"again": f"port {port}" if port else "the same switch"}
    elif hurt is not None:
        evidence = {"with": str(hurt.key)}
    fatal = bool(evidence)
    return Ruling(XidClass.FAILURE if fatal else XidClass.WARNING, sxid_advice(fatal=fatal), evidence)


def _is_lost(track: Track) -> bool:
    return track.key.code == "gpu_missing" or (is_fallen(track.key) and CONTRADICTED not in track.evidence)


def _suffers(track: Track) -> bool:
    key = track.key
    if key.code == "xid":
        return track.severity is Severity.FAILURE or key.detail in NVLINK_XIDS
    return key.code == "nvlink_down" or key.code in NO_ANSWER


def _near(state: State, record: Record, within: float) -> list[Track]:
    """Return the findings raised within this time before or after the newest line; for Xids, by their last line."""
    raised = (track for track in state.tracks.values() if track.raised)
    return [t for t in raised if _apart(t.last_seen if t.key.code == "xid" else t.first_seen, record.last) <= within]


def _apart(stamp: Stamp, other: Stamp) -> float:
    """Return the greater difference of the two clocks: boottime is meaningless for a finding of an earlier boot."""
    return max(abs(stamp.boottime - other.boottime), abs(stamp.wall - other.wall))
