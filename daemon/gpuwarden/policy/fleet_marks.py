"""Marks of a node in a text field of the scheduler, by which nodes count how many act at the same time. Pure.

    gpuwarden: test from=1781000000 to=1781001020
    gpuwarden: test from=1781000000 to=1781001020 gpuwarden: repair from=1780990000 to=1780990300

A mark gives the beginning of an action and its latest end. A field with any other text is another party's, and is not
changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from gpuwarden.policy.reasons import PREFIX

CLOCKS_APART = 60.0
"""Most seconds by which the clocks of two nodes may differ. A mark counts for this long before its beginning and after
its end."""
LASTS_MOST = 3 * 3600.0
"""Longest duration of a mark, in seconds. A mark with a longer one is ignored."""
MARKS_MOST = 6
"""Most marks of one node. Slurm would store more, but people read the field."""
_ONE = rf"{re.escape(PREFIX)}([a-z]{{1,16}}) from=(\d{{1,12}}) to=(\d{{1,12}})"
_MARK, _MARKS = re.compile(_ONE, re.ASCII), re.compile(rf"(?:{_ONE} ?)*", re.ASCII)


class Mark(NamedTuple):
    what: str
    """`test`, `repair`."""
    since: float
    until: float

    def __str__(self) -> str:
        return f"{PREFIX}{self.what} from={self.since:.0f} to={self.until:.0f}"

    def counts(self, now: float) -> bool:
        """Return True if the marked action may be in progress now."""
        lasts = self.until - self.since
        return lasts <= LASTS_MOST and self.since - CLOCKS_APART <= now <= self.until + CLOCKS_APART


def is_free(text: str) -> bool:
    """Return True if a field contains only marks, or nothing."""
    return _MARKS.fullmatch(text.strip()) is not None


def marks(text: str) -> tuple[Mark, ...]:
    """Return the marks in a field; none if the field is another party's."""
    if not is_free(text):
        return ()
    return tuple(Mark(kind, float(since), float(until)) for kind, since, until in _MARK.findall(text))


def with_mark(text: str, mark: Mark, kept: float = 0.0) -> str:
    """Return the field with this mark. Older marks of its kind are removed, except those that began at most `kept`
    seconds before.
    """
    return _text((*_others(marks(text), mark.what, mark.since - kept if kept else None), mark))


def without(text: str, kind: str) -> str:
    """Return the field without the marks of one kind."""
    return _text(_others(marks(text), kind, None))


def _others(all_marks: Iterable[Mark], kind: str, since: float | None) -> list[Mark]:
    return [mark for mark in all_marks if mark.what != kind or (since is not None and mark.since > since)]


def _text(all_marks: Iterable[Mark]) -> str:
    return " ".join(map(str, list(all_marks)[-MARKS_MOST:]))
