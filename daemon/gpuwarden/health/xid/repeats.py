"""Rules for recurring Xids. An application that causes an error causes it on other GPUs too."""

from __future__ import annotations

from collections.abc import Sequence

from gpuwarden.health.inventory import known_count
from gpuwarden.health.memory import Record, State
from gpuwarden.health.model import Advice, Evidence
from gpuwarden.health.view import Sight
from gpuwarden.health.xid.bursts import OF_A_DAY, Burst
from gpuwarden.health.xid.catalogue import Xid, XidClass
from gpuwarden.health.xid.ruling import Ruling, newest_signs, of_boot, plain

DAY, HOUR = 86_400.0, 3_600.0
BURSTS_OF_A_DAY = 5
"""Bursts within a day that count as a repeat. NVSentinel's analyser uses this number, then advises vendor support."""
COMPARABLE = 2
"""Fewest GPUs of a host for which an error on only one of them is significant."""
NVLINK_BURSTS = 2
"""Bursts within a day. Failing NVLinks usually keep failing: 66 % of Xid 74 recur on the same GPU (Delta study)."""


def of_application(state: State, _: Sight, record: Record, row: Xid) -> Ruling:
    """Return the ruling on most numbers: a repeat on one GPU alone has the class `repeated` of the table."""
    return repeated(state, record, plain(row), row, row.escalation)


def repeated(state: State, record: Record, ruling: Ruling, row: Xid, advice: Advice) -> Ruling:
    times = len(_of_a_day(record.bursts, record))
    if row.repeated is None or times < BURSTS_OF_A_DAY or _elsewhere(state, record) * 2 >= times:
        return ruling
    evidence: Evidence = {**ruling.evidence, OF_A_DAY: times}
    return Ruling(row.repeated, advice, evidence)


def of_place(state: State, sight: Sight, record: Record, row: Xid) -> Ruling:
    """Return the ruling on an Xid 13 or 31: a warning if jobs more than an hour apart, or five jobs of a day, fault at
    one place of the chip and mostly on this GPU of the host.

    A job that fails is resubmitted within minutes, hence the hour. A burst that names several places points to the
    application. A host with one GPU has no other to compare with: the same program faults at the same place each time,
    since the first block of a kernel always runs on the same part of an idle GPU.
    """
    bursts, place = _of_a_day(record.bursts, record), newest_signs(record)
    if known_count(state, sight) < COMPARABLE or len(place) != 1 or not place[0].startswith("GPC "):
        return plain(row)  # without a GPC in the line the place is ambiguous
    here = [burst for burst in bursts if burst.signs == place]
    jobs = _jobs(here)
    again = len(jobs) >= BURSTS_OF_A_DAY or any(jobs[-1].began - burst.ended > HOUR for burst in jobs[:-1])
    if not again or _elsewhere(state, record) * 2 >= len(here):
        return plain(row)
    evidence: Evidence = {"place": place[0], OF_A_DAY: len(here), "jobs": len(jobs)}
    return Ruling(XidClass.WARNING, row.escalation, evidence)


def _jobs(bursts: Sequence[Burst]) -> list[Burst]:
    """Return the newest burst of each job. One without a PID is a separate job: no process survives these Xids."""
    newest: list[Burst] = []
    seen: set[int] = set()
    for burst in reversed(bursts):
        if seen.isdisjoint(burst.pids):
            newest.insert(0, burst)
        seen.update(burst.pids)
    return newest


def of_nvlink(_: State, __: Sight, record: Record, row: Xid) -> Ruling:
    """Return the ruling on an Xid 74: it has the class `repeated` from the second burst of a day on."""
    times = len(_of_a_day(record.bursts, record))
    if times < NVLINK_BURSTS:
        return plain(row)
    return Ruling(row.repeated or row.klass, Advice.RESET_GPU, {OF_A_DAY: times})


def _of_a_day(bursts: Sequence[Burst], record: Record) -> list[Burst]:
    return [burst for burst in bursts if record.last.boottime - burst.ended <= DAY]


def _elsewhere(state: State, record: Record) -> int:
    """Return the number of bursts of the same Xid on the other GPUs within the same day."""
    return sum(
        len(_of_a_day(other.bursts, record))
        for other in of_boot(state, record)
        if other.key.detail == record.key.detail and other.key.subject != record.key.subject
    )
