"""The announcements in force, by the answers to one question so far. Pure.

    seen ──▶ held ── missing in `WITHDRAWN_AFTER` good answers, one after the other ──▶ withdrawn

An unknown answer leaves everything as it is: it neither counts as missing nor begins the count again.
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
"""Seconds: a Date header has whole ones, so that the same end moves by one between two answers."""
LATER_BY = 60.0
"""Seconds between two answers, in one step. Less is a service that counts from now each time it is asked, not a respite."""


@dataclass(frozen=True, slots=True)
class Announced:
    """One notice that is in force."""

    notice: TerminationNotice
    """The notice, with the deadline that counts."""
    latest: Stamp | None
    """The deadline in the newest answer, which need not be the one that counts."""
    missing: int = 0
    """Good answers in a row without it."""


Held = Mapping[str, Announced]


def held_before(notices: Mapping[str, TerminationNotice]) -> Held:
    """Return announcements of an earlier run of the daemon: answers withdraw and move them as they do those of this run."""
    return {name: Announced(notice, notice.deadline) for name, notice in notices.items()}


def follow(held: Held, answer: Answer, now: Stamp) -> Held:
    """Return what is in force after an answer that came by `now`."""
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
    """Return the deadline that holds: an earlier one at once, a later one only if it was moved.
    One that is over was not: a source gives it as the time of its answer, for as long as it announces the event.
    """
    held, new = before.notice.deadline, current.deadline
    if held is None or new is None:
        return new if held is None else held
    if new.boottime < held.boottime - EARLIER_BY:
        return new
    moved = before.latest is not None and new.boottime > before.latest.boottime + LATER_BY
    return new if moved and new.boottime > now.boottime and not current.estimated else held
