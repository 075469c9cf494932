"""The ruling on one record of an Xid or SXid, and the site's rule for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

from gpuwarden.health.memory import Record, State
from gpuwarden.health.model import Advice, Evidence
from gpuwarden.health.view import XidRule
from gpuwarden.health.xid.catalogue import Xid, XidClass
from gpuwarden_collectors.dataclass import dataclass, replace


@dataclass(frozen=True, slots=True)
class Ruling:
    """The judgement of one record."""

    klass: XidClass
    """Record, warning or failure."""
    advice: Advice
    """The next step."""
    evidence: Evidence = field(default_factory=dict)
    """The reasons, by name."""
    over: bool = False
    """The error has ended; a site's rule no longer applies."""


def plain(row: Xid) -> Ruling:
    return Ruling(row.klass, row.advice)


def of_site(ruling: Ruling, rule: XidRule | None, cure: Advice) -> Ruling:
    """Apply the site's rule to a ruling. `cure`: the advice for a failure if neither the table nor the site has any."""
    if rule is None or ruling.over:
        return ruling
    klass = XidClass(rule.severity) if rule.severity else ruling.klass
    helpless = klass is XidClass.FAILURE and ruling.advice in (Advice.NONE, Advice.OBSERVE)
    advice = rule.advice or (cure if helpless else ruling.advice)
    changed = (klass, advice) != (ruling.klass, ruling.advice)
    by = {"classed_by": "this site's configuration"} if changed else {}
    return replace(ruling, klass=klass, advice=advice, evidence={**ruling.evidence, **by})


def newest_signs(record: Record) -> tuple[str, ...]:
    """Return the distinct signs of the newest burst, newest last."""
    return record.bursts[-1].signs if record.bursts else ()


def of_boot(state: State, record: Record) -> Iterator[Record]:
    """Return all records of Xids of the same boot."""
    return (r for r in state.records.values() if r.key.code == "xid" and r.boot_id == record.boot_id)
