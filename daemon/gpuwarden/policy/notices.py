"""Termination notices: which of them is imminent, and which have changed. Pure.

A notice is *imminent* when it is hard, within the horizon (or without a deadline), and no operator called it off. Only
an imminent notice excludes the node; the others are only shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from gpuwarden.health.event_data import write
from gpuwarden.health.model import Event, EventKind
from gpuwarden.policy.events import NoticeEnded
from gpuwarden.policy.model import Notice
from gpuwarden_collectors.facts import Stamp

MOVED = 1.0
"""Seconds by which a deadline must move to be reported again."""

NAME_MOST = 200  # characters of the id of a notice

Notices = Mapping[str, Notice]


def id_of(notice: Notice) -> str:
    """Return the id of the announcement, as jobs see it. A notice that is announced again after its end has another one."""
    return f"{notice.name}@{notice.at.boottime:.0f}"[:NAME_MOST]


def imminent(notices: Notices, horizon: float, now: Stamp) -> Notice | None:
    """The imminent notice that ends first, or None. One without a deadline takes precedence over all others."""
    return next(iter(all_imminent(notices, horizon, now)), None)


def all_imminent(notices: Notices, horizon: float, now: Stamp) -> list[Notice]:
    """Imminent notices, in the order in which they end."""
    return sorted((notice for notice in notices.values() if is_imminent(notice, horizon, now)), key=_end)


def is_imminent(notice: Notice, horizon: float, now: Stamp) -> bool:
    if not notice.hard or notice.called_off:
        return False
    return notice.deadline is None or notice.deadline.boottime - now.boottime <= horizon


def _end(notice: Notice) -> float:
    return float("-inf") if notice.deadline is None else notice.deadline.boottime


def differences(
    notices: Notices, source: str, announced: Iterable[Notice], *, horizon: float, now: Stamp
) -> Iterator[Event]:
    """Events for notices that are new, moved or withdrawn. `announced`: all current notices of `source`. A notice whose
    deadline moves beyond the horizon is withdrawn first.
    """
    seen = {
        notice.name: replace(notice, called_off=notice.name in notices and notices[notice.name].called_off)
        for notice in announced
    }
    others = {name: notice for name, notice in notices.items() if notice.source != source}
    released = imminent({**others, **seen}, horizon, now) is None
    for name, notice in notices.items():
        if notice.source == source and name not in seen:
            yield _ended(notice, now, released=released)
    for name, notice in seen.items():
        before = notices.get(name)
        if before is None:
            yield noticed(notice)
        elif _changed(before, notice):
            if is_imminent(before, horizon, now) and not is_imminent(notice, horizon, now):
                yield _ended(before, now, released=released)
            yield noticed(notice)


def _changed(before: Notice, now: Notice) -> bool:
    if (before.kind, before.hard, before.approval) != (now.kind, now.hard, now.approval) or (
        before.deadline is None
    ) != (now.deadline is None):
        return True
    if before.deadline is None or now.deadline is None:
        return False
    return abs(before.deadline.boottime - now.deadline.boottime) > MOVED


def noticed(notice: Notice) -> Event:
    return Event(kind=EventKind.NOTICED, at=notice.at, boot_id=notice.boot_id, data=write(notice))


def _ended(notice: Notice, now: Stamp, *, released: bool) -> Event:
    """The event of a notice that its own source withdrew. `released`: no other is imminent, so exclusions for it may be
    lifted.
    """
    data = write(NoticeEnded(source=notice.source, id=notice.id, released=released))
    return Event(kind=EventKind.NOTICE_ENDED, at=now, boot_id=notice.boot_id, data=data)


def called_off(notices: Notices, operator: str) -> dict[str, Notice]:
    """Notices after an operator called off the end. The operator's own is removed; if there was none, the others are
    ignored for as long as they are announced.
    """
    if operator in notices:
        return {name: notice for name, notice in notices.items() if name != operator}
    return {name: replace(notice, called_off=True) for name, notice in notices.items()}
