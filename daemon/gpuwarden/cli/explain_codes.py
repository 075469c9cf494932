"""What Xids, SXids, DCGM codes and pasted kernel lines mean: facts by name, for `gpuwarden explain`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field

from gpuwarden.base.durations import format_duration
from gpuwarden.cli.parser import CommandError
from gpuwarden.health.dcgm.catalogue import DCGM_CODES, DcgmCode, dcgm_named, judged
from gpuwarden.health.gpu.detectors import RECOVERY_ACTIONS
from gpuwarden.health.model import Advice
from gpuwarden.health.nvlink.nvlink5 import NVLINK5_XIDS, R575, Nvlink5Line, branch, decode, nvlink5_line
from gpuwarden.health.nvlink.nvlink5_catalogue import PROVENANCE, Nvlink5Rule
from gpuwarden.health.runbooks import address
from gpuwarden.health.to_do import COMMON, first_sentence, of_condition, of_recovery, of_sxid, of_xid
from gpuwarden.health.view import Rules, XidRule
from gpuwarden.health.xid.catalogue import XidClass, xid_row
from gpuwarden.health.xid.lines import followed, recovery_action, sign
from gpuwarden.health.xid.rules import of_line
from gpuwarden.health.xid.ruling import Ruling, of_site
from gpuwarden.health.xid.sxid_catalogue import advice as sxid_advice
from gpuwarden.health.xid.sxid_catalogue import sxid_row
from gpuwarden.health.xid.sxid_rules import AGAIN, first_class
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.event_facts import SxidEvent, XidEvent
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.kernel_log.lines import Record, event_of

Facts = dict[str, str]
Explained = tuple[str, Facts]
"""A title, and facts by name; empty ones are left out."""


@dataclass(frozen=True, slots=True)
class LineFacts:
    """Facts in a line in addition to its number; None: as in the table."""

    ruling: Ruling | None = None
    facts: Facts = field(default_factory=dict)
    escalation: Advice | None = None
    to_do: str = ""


CLASSES = {
    XidClass.RECORD: "record: kept in the history, the GPU stays healthy",
    XidClass.WARNING: "warning: the node may still take work",
    XidClass.FAILURE: "failure: the node should not take new work",
}
LINE = re.compile(r"NVRM: |nvidia-nvswitch\d")
"""The start of a kernel log line, after the prefix of dmesg or journalctl."""


def xid(number: int, rules: Rules, read: LineFacts | None = None) -> Explained:
    """Explain an Xid. `read`: further facts in a line."""
    row = xid_row(number)
    read = read or LineFacts()
    ruling = read.ruling or Ruling(row.klass, row.advice)
    worse = (
        row.repeated is not None and ruling.klass in (XidClass.RECORD, row.klass) and row.repeated is not ruling.klass
    )
    facts = {
        **read.facts,
        "class": CLASSES[ruling.klass],
        "repeated": CLASSES[row.repeated] if row.repeated is not None and worse else "",
        **_here(ruling, rules.xids.get(str(number)), f"xids.{number}", Advice.RESET_GPU),
        "to do": read.to_do or of_xid(number, ruling.advice),
        "advice": ruling.advice,
        "if it recurs": _then(read.escalation or row.escalation, ruling.advice),
        "note": row.note,
        "vendor's action": row.action,
        "from": row.provenance,
        "runbook": address("xid"),
    }
    return f"Xid {number}: {row.meaning}", facts


_TRAFFIC = {True: "fatal: traffic over the NVSwitch may stop until it is reset", False: "not fatal: traffic continues"}


def sxid(number: int, rules: Rules, *, fatal: bool | None = None) -> Explained:
    """Explain an SXid. `fatal`: from the line, or None."""
    row = sxid_row(number)
    klass = first_class(row, fatal)
    ruling = Ruling(klass, sxid_advice(fatal=klass is XidClass.FAILURE))
    facts = {
        "class": f"{_TRAFFIC[row.fatal or fatal is True]}; {CLASSES[klass]}",
        **_here(ruling, rules.sxids.get(str(number)), f"sxids.{number}", Advice.REBOOT),
        "to do": of_sxid(ruling.advice),
        "advice": ruling.advice,
        "a failure": AGAIN if row.fatal and klass is XidClass.WARNING else "",
        "if it recurs": _then(row.escalation, ruling.advice),
        "note": row.note,
        "from": row.provenance,
        "runbook": address("sxid"),
    }
    return f"SXid {number}: {row.meaning}", facts


def _here(table: Ruling, rule: XidRule | None, key: str, cure: Advice) -> Facts:
    """The site's classification, if configured."""
    if rule is None or not (rule.severity or rule.advice):
        return {}
    site = of_site(table, rule, cure)
    advice = f"; to do here: {first_sentence(COMMON[site.advice])}" if site.advice is not table.advice else ""
    return {"class here": f"{CLASSES[site.klass]}{advice} (the site's configuration: {key})"}


def _then(escalation: Advice, advice: Advice) -> str:
    return "" if escalation in (Advice.NONE, advice) else COMMON[escalation]


def dcgm(text: str) -> DcgmCode:
    """Find a DCGM code by number or name. Raises CommandError."""
    row = dcgm_named(text) or dcgm_named(f"dcgm {text}")  # one code is named DCGM_API
    if row is not None:
        return row
    name = text.strip().upper().replace(" ", "_").removeprefix("DCGM_").removeprefix("FR_")
    similar = [code.name for code in DCGM_CODES.values() if len(name) > 2 and name in code.name][:5]
    hint = f"did you mean {' or '.join(similar)}?" if similar else "give its number, or its name in dcgm_errors.h"
    raise CommandError(f"DCGM has no code {text[:60]!r}; {hint}")


def dcgm_facts(row: DcgmCode) -> Explained:
    facts = {
        "class": judged(row),
        "to do": of_condition(row.condition, row.advice),
        "advice": row.advice,
        "note": row.note,
        "vendor's class": f"{row.severity}, {row.category}",
        "vendor's action": row.action,
        "from": row.provenance,
    }
    return f"DCGM code {row.code} ({row.name}): {row.meaning}", facts


def line(text: str, rules: Rules, driver: str) -> Explained:
    """Explain a pasted line of the kernel log. Raises CommandError without an Xid or SXid."""
    begins = LINE.search(text)
    event = event_of(Record(0, 0, 0, 0, text[begins.start() :]), Stamp(0.0, 0.0), "") if begins else None
    if isinstance(event, SxidEvent):
        title, facts = sxid(event.sxid, rules, fatal=event.fatal)
        return title, {"NVSwitch": event.slot, **facts}
    if not isinstance(event, XidEvent):
        raise CommandError("this line of the kernel log has no readable Xid or SXid")
    read = _nvlink5(event, driver) if event.xid in NVLINK5_XIDS else _other(event)
    title, facts = xid(event.xid, rules, read)
    return title, {"GPU": event.slot or "the line names none", **facts}


def _other(event: XidEvent) -> LineFacts:
    """Read the facts in a line of an Xid, except those of NVLink 5."""
    text = sign(event)
    if event.xid == 154 and (action := recovery_action(text)) is not None:
        if action == 0:
            return LineFacts(facts={"line": "no recovery is needed any more: findings that a reset ends have ended"})
        name, severity, advice = RECOVERY_ACTIONS.get(action, ("unknown", "failure", Advice.CONTACT_SUPPORT))
        return LineFacts(
            facts={"line": f"the driver requests: {name}. gpu_recovery_action: {severity}"},
            to_do=of_recovery(action, advice),
        )
    if (decided := of_line(xid_row(event.xid), (text,))) is not None:
        return LineFacts(decided, {"line": str(decided.evidence["line"])})
    if cause := followed(text):
        return LineFacts(facts={"line": f"it followed Xid {cause}, which decides"})
    return LineFacts(facts={"place": text} if event.xid in (13, 31) else {})


def _nvlink5(event: XidEvent, driver: str) -> LineFacts:
    read = nvlink5_line(event.text)
    if read is None:
        return LineFacts(facts={"decoded": "not decoded: the line does not match the format in the vendor's sheet"})
    rule = decode(event.xid, read, branch(driver))
    registers = _registers(read, driver)
    if rule is None:
        text = "no rule of the vendor's sheet fits this unit, sub-code and status: a warning"
        return LineFacts(facts={**registers, "decoded": text})
    klass = XidClass.WARNING if read.fatal and rule.klass is XidClass.RECORD else rule.klass
    return LineFacts(Ruling(klass, rule.advice), {**registers, "decoded": _rule_text(rule)}, rule.escalation)


def _registers(read: Nvlink5Line, driver: str) -> Facts:
    number = branch(driver)
    by = (
        "of either driver generation"
        if number is None
        else f"of drivers {'from' if number >= R575 else 'before'} R{R575}"
    )
    return {"unit": f"{'/'.join(read.units)}, sub-code {read.sub_code}, error status {read.status:#x}, read as {by}"}


def _rule_text(rule: Nvlink5Rule) -> str:
    note = f"; {rule.note}" if rule.note else ""
    return f"{rule.severity}; the vendor's action: {rule.action}; then: {rule.follow_up}{note} ({PROVENANCE})"


def site_checks(rules: Rules, code: str) -> Mapping[str, str]:
    """The site's rule for a condition."""
    rule = rules.checks.get(code)
    if rule is None:
        return {}
    settings = {
        "disabled": not rule.enabled,
        "in shadow: reported, without effect on health": rule.shadow is True,
        "not in shadow: it affects health": rule.shadow is False,
        f"severity {rule.severity}": rule.severity is not None,
        f"rise {format_duration(rule.rise or 0.0)}": rule.rise is not None,
        f"fall {format_duration(rule.fall or 0.0)}": rule.fall is not None,
    }
    rule_text = ", ".join(text for text, holds in settings.items() if holds)
    return {"here": f"{rule_text} (the site's configuration: checks.{code})"} if rule_text else {}
