"""Classifies a record of an Xid by its row in the table, related Xids, repeats, and the site's configuration.

| Xid | rule |
|---|---|
| 13, 31 | one place (GPC and TPC or client) of one GPU, by jobs more than an hour apart or by five jobs of a day, and mostly on this GPU of a host that has several: a warning |
| 79 | reported by NVML: a failure at once. A kernel log line that PCI bus and NVML, both read after it, contradict: a warning (`witnesses.py`) |
| others that an application can cause | five bursts within a day, fewer than half as many on the other GPUs: a warning |
| 45 | a record after another Xid or a reset, or with a process in its line (it was killed); else a warning |
| 63, 94, 171, 172 | within seconds of a 48 of the same GPU: details of it |
| 94 | a failure, if the driver says in the line that the GPU must be reset |
| 160 | advises a reboot, if the line says that the repair needs one |
| 74 | the second burst within a day: a failure |
| 144 to 150 | by the vendor's decode sheet (`nvlink5.py`); a line that it does not describe is a warning |
| 154 | the source of `gpu_recovery_action` (`recovery.py`); an unreadable line is a warning |
| 163 | ended by a 162 |

The site's rule for a number takes precedence. Rulings depend only on records, current facts and the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpuwarden.health.memory import Record, State
from gpuwarden.health.model import Advice, Evidence
from gpuwarden.health.nvlink.nvlink5 import NVLINK5_XIDS, branch, decode, nvlink5_sign
from gpuwarden.health.view import Sight
from gpuwarden.health.xid.catalogue import Xid, XidClass, xid_row
from gpuwarden.health.xid.lines import REBOOT, RESET, UNREADABLE, recovery_action
from gpuwarden.health.xid.partners import CANCELS, DETAILS_OF_48, cleanup, detail_of_48, double_bit, ended
from gpuwarden.health.xid.repeats import of_application, of_nvlink, of_place, repeated
from gpuwarden.health.xid.ruling import Ruling, newest_signs, of_site, plain
from gpuwarden.health.xid.witnesses import fallen_off
from gpuwarden_collectors.dataclass import replace

TEXT_WITHIN = 5.0
"""Seconds to wait for the kernel log line of a bare number from NVML or DCGM."""
_UNDESCRIBED: Evidence = {"decoded": "this line is not documented"}
_ORDER = (XidClass.RECORD, XidClass.WARNING, XidClass.FAILURE)


def ruling(state: State, sight: Sight, record: Record) -> Ruling | None:
    """Return the ruling on a record of an Xid, or None if it is too early to decide."""
    row = xid_row(int(record.key.detail))
    rule = sight.rules.xids.get(record.key.detail)
    settled = rule is not None and rule.severity != ""
    if unread(record) and not settled and sight.now.boottime - record.last.boottime < TEXT_WITHIN:
        return None
    decided = _RULES.get(row.xid, of_application)(state, sight, record, row)
    if decided is None and not settled:
        return None
    return of_site(decided or plain(row), rule, Advice.RESET_GPU)


def unread(record: Record) -> bool:
    """Return True if the record is a bare number that needs its log line to be classified."""
    return int(record.key.detail) in NVLINK5_XIDS and not newest_signs(record)


def _decoded(state: State, sight: Sight, record: Record, row: Xid) -> Ruling:
    """Return the ruling on an Xid 144 to 150: the worst among the lines of the newest burst."""
    rulings = [_line(sight, row, sign) for sign in newest_signs(record)]
    if not rulings:
        return replace(plain(row), evidence={"decoded": "the kernel log has no line of it"})
    worst = max(rulings, key=lambda each: _ORDER.index(each.klass))
    if worst.klass is not XidClass.RECORD:
        return worst
    return repeated(state, record, worst, row, row.escalation)


def _line(sight: Sight, row: Xid, sign: str) -> Ruling:
    line = nvlink5_sign(sign)
    facts = sight.view.nvml.facts
    rule = None if line is None else decode(row.xid, line, None if facts is None else branch(facts.driver_version))
    if line is None or rule is None:
        return replace(plain(row), evidence=_UNDESCRIBED)
    evidence: Evidence = {
        "unit": line.units[0],
        "sub_code": line.sub_code,
        "vendor_action": rule.action,
        "then": rule.follow_up,
    }
    understated = line.fatal and rule.klass is XidClass.RECORD
    return Ruling(XidClass.WARNING if understated else rule.klass, rule.advice, evidence)


def of_line(row: Xid, signs: Sequence[str]) -> Ruling | None:
    """Return the ruling on an Xid 94 or 160 whose line asks for more than its row; None for others.

    On Blackwell the driver contains what poisons the GPU's own processors, and needs a reset all the same
    (kern_gpu_error_cont_gb100.c of NVIDIA's open kernel modules 595.45.04). ras_events.c of later ones has the texts of 160.
    """
    if row.xid == 94 and RESET in signs:
        return Ruling(XidClass.FAILURE, Advice.RESET_GPU, {"line": "the driver needs a reset of the GPU"})
    if row.xid == 160 and REBOOT in signs:
        return Ruling(row.klass, Advice.REBOOT, {"line": "the repair needs a reboot of the node"})
    return None


def _contained(state: State, sight: Sight, record: Record, row: Xid) -> Ruling:
    return of_line(row, newest_signs(record)) or detail_of_48(state, sight, record, row)


def _repair(_: State, __: Sight, record: Record, row: Xid) -> Ruling:
    return of_line(row, newest_signs(record)) or plain(row)


def _recovery(_: State, __: Sight, record: Record, row: Xid) -> Ruling:
    newest = newest_signs(record)[-1:]
    if newest == (UNREADABLE,):
        return Ruling(XidClass.WARNING, Advice.OBSERVE, _UNDESCRIBED)
    return replace(plain(row), over=any(recovery_action(sign) == 0 for sign in newest))


_RULES: dict[int, Callable[[State, Sight, Record, Xid], Ruling | None]] = {
    13: of_place,
    31: of_place,
    45: cleanup,
    48: double_bit,
    74: of_nvlink,
    79: fallen_off,
    154: _recovery,
    160: _repair,
    **dict.fromkeys(DETAILS_OF_48, detail_of_48),
    94: _contained,  # also a detail of 48
    **dict.fromkeys(map(int, CANCELS.values()), ended),
    **dict.fromkeys(NVLINK5_XIDS, _decoded),
}
