"""Tracks which notices are in force, from the successive answers to one question. Pure.

    seen ──▶ held ── missing in `WITHDRAWN_AFTER` good answers, one after the other ──▶ withdrawn

An unknown answer changes nothing: it neither counts as missing nor resets the count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpuwarden_collectors.cloud.facts import Answer, AnswerKind, TerminationNotice
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

WITHDRAWN_AFTER = 3
HELD_MOST = 64
EARLIER_BY = 2.0
"""Seconds. A Date header has whole seconds, so the same deadline can differ by one between two answers."""
LATER_BY = 60.0
"""Seconds by which one answer must postpone the deadline. A smaller step comes from a service that counts from now."""


@dataclass(frozen=True, slots=True)
class Announced:
    """One notice that is in force."""

    notice: TerminationNotice
    """The notice, with the effective deadline."""
    latest: Stamp | None
    """The deadline in the newest answer, which may differ from the effective one."""
    missing: int = 0
    """Good answers in a row without it."""


Held = Mapping[str, Announced]


def held_before(notices: Mapping[str, TerminationNotice]) -> Held:
    """Return notices of an earlier run of the daemon as tracked ones: answers withdraw or move them as usual."""
    return {name: Announced(notice, notice.deadline) for name, notice in notices.items()}


def follow(held: Held, answer: Answer, now: Stamp) -> Held:
    """Return the notices in force after an answer that arrived at `now`."""
    if answer.kind is AnswerKind.UNKNOWN:
        return held
    current = {notice.id: notice for notice in answer.notices}
    after = {name: _seen(announced, current[name], now) for name, announced in held.items() if name in current}
    for name, announced in held.items():
        if name not in current and (answer.partial or announced.missing + 1 < WITHDRAWN_AFTER):
            after[name] = replace(announced, missing=announced.missing + (not answer.partial))
    for name, notice in current.items():
        if name not in held and len(after) < HELD_MOST:
            after[name] = Announced(notice, notice.deadline)
    return after


def _seen(before: Announced, current: TerminationNotice, now: Stamp) -> Announced:
    return Announced(replace(current, deadline=_deadline(before, current, now)), current.deadline)


def _deadline(before: Announced, current: TerminationNotice, now: Stamp) -> Stamp | None:
    """Return the effective deadline: an earlier one applies at once, a later one only if the source postponed it.

    A new deadline that has already passed is not a postponement: some sources report the time of the answer as the
    deadline while the event is announced.
    """
    held, new = before.notice.deadline, current.deadline
    if held is None or new is None:
        return new if held is None else held
    if new.boottime < held.boottime - EARLIER_BY:
        return new
    moved = before.latest is not None and new.boottime > before.latest.boottime + LATER_BY
    return new if moved and new.boottime > now.boottime and not current.estimated else held
