"""Quiet hours of a site, such as `22:00-06:00`, in which an action must not start. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)", re.ASCII)
_MOST = 24


def quiet(hours: Iterable[str], minute: int) -> bool:
    """Return True if `minute` of the local day is within one of these hours."""
    return any(_within(minute, *span) for text in hours if (span := _minutes(text)) is not None)


def faults(hours: tuple[str, ...]) -> Iterator[str]:
    """Yield the faults of these hours."""
    if len(hours) > _MOST:
        yield f"expected at most {_MOST} entries, found {len(hours)}"
    for text in hours[:_MOST]:
        if _minutes(text) is None:
            yield f'expected hours such as "22:00-06:00", not empty, found {text[:60]!r}'


def _minutes(text: str) -> tuple[int, int] | None:
    """Parse the first minute of the day, and the end minute; None for another text."""
    match = _HOURS.fullmatch(text)
    if match is None:
        return None
    first, last = int(match[1]) * 60 + int(match[2]), int(match[3]) * 60 + int(match[4])
    return None if first == last else (first, last)


def _within(minute: int, first: int, last: int) -> bool:
    return first <= minute < last if first < last else minute >= first or minute < last
