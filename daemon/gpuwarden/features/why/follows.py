"""Finds which touch of a job follows from another: by incidents, by `depends_on`, or as a program met a failing GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from gpuwarden.features.why.model import Touch
from gpuwarden.health.incident_rules import RULES, Rule, Where
from gpuwarden.health.inhibition import causes
from gpuwarden.health.xid.catalogue import XidClass, xid_row

MET_WITHIN, MET_BEFORE = 60.0, 5.0
"""Seconds after, and before, the failure of a GPU in which Xids of programs on any GPU of the job follow from it."""


def xid_number(touch: Touch) -> int | None:
    if touch.what != "xid" or not (touch.detail.isascii() and touch.detail.isdecimal() and len(touch.detail) < 5):
        return None
    return int(touch.detail)


def code_of(touch: Touch) -> str:
    """Return the code, with detail, of the condition that a touch indicates, such as `xid.79`; empty if none."""
    match touch.what:
        case "xid":
            return f"xid.{touch.detail}"
        case "sxid" | "finding" | "rising" | "standing":
            code = touch.detail.partition("@")[0]
            return f"sxid.{code}" if touch.what == "sxid" else code
    return ""


def id_of(touch: Touch) -> str:
    return f"xid.{touch.detail}@gpu/{touch.slot}" if touch.what == "xid" else touch.detail


def is_of_programs(touch: Touch) -> bool:
    """Return True for an Xid that programs can cause."""
    number = xid_number(touch)
    return number is not None and xid_row(number).klass is XidClass.RECORD


@lru_cache(maxsize=512)
def _names(code: str) -> frozenset[str]:
    return frozenset((code, code.partition(".")[0])) - {""}


def with_follows(touches: Sequence[Touch], cause_ids: Mapping[str, str]) -> tuple[Touch, ...]:
    """Return the touches with `follows` set. `cause_ids`: by id, causes by the judge's findings, of other GPUs, too."""
    return tuple(_with(touch, touches, cause_ids) for touch in touches)


def _with(touch: Touch, touches: Sequence[Touch], cause_ids: Mapping[str, str]) -> Touch:
    cause = next((other for other in touches if other is not touch and _causes(other, touch)), None)
    follows = cause_ids.get(id_of(touch), "") if cause is None else id_of(cause)
    return touch if not follows or follows == touch.follows else replace(touch, follows=follows[:200])


def _causes(cause: Touch, touch: Touch) -> bool:
    names, others = _names(code_of(cause)), _names(code_of(touch))
    if not names or not others or names == others:
        return False
    by_table = any(
        rule.cause in names
        and not others.isdisjoint(rule.consequences)
        and _there(rule, cause, touch)
        and _then(cause, touch, rule.before, rule.within)
        for rule in RULES
    )
    return by_table or _inhibits(cause, touch) or _met(cause, touch)


def _there(rule: Rule, cause: Touch, touch: Touch) -> bool:
    match rule.where:
        case Where.SAME_SLOT:
            return cause.slot == touch.slot
        case Where.OTHER_GPUS:
            return "" not in (cause.slot, touch.slot) and cause.slot != touch.slot
        case Where.GPUS:
            return touch.slot != ""
        case Where.SWITCHES:
            return touch.what == "sxid"
    return touch.slot == ""


def _then(cause: Touch, touch: Touch, before: float, within: float) -> bool:
    began, at = cause.at.boottime, touch.at.boottime
    if cause.what in ("finding", "rising"):
        over = None if cause.until is None else cause.until.boottime
    else:
        over = (cause.until or cause.at).boottime
    return began - before <= at and (over is None or at <= over + within)


def _inhibits(cause: Touch, touch: Touch) -> bool:
    code, other = code_of(cause).partition(".")[0], code_of(touch).partition(".")[0]
    near = not cause.slot or cause.slot == touch.slot
    return cause.what == "finding" and code in causes(other) and near and _then(cause, touch, MET_BEFORE, MET_WITHIN)


def _met(cause: Touch, touch: Touch) -> bool:
    """Return True if an Xid that programs can cause came with the failure of a GPU of the job."""
    if cause.what == "standing" or not is_of_programs(touch):
        return False
    other = xid_number(cause)
    fails = (other is not None and xid_row(other).klass is XidClass.FAILURE) or code_of(cause) in _FAILED
    return fails and -MET_BEFORE <= touch.at.boottime - cause.at.boottime <= MET_WITHIN


_FAILED = frozenset({"gpu_missing", "gpu_unresponsive", "gpu_reset_required"})
