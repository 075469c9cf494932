"""What the events of jobs hold. The keys are those of the ledger; see `health/event_data.py`. Pure.

JOB_BEGUN is at the begin of its job, with the boot of that, and JOB_ENDED at its end. What touched a job is one key for each touch,
with its fields separated by tabs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Annotated

from gpuwarden.features.why.model import PIDS_MOST, TOUCHES_MOST, Cause, Certainty, Touch, Use
from gpuwarden.health.event_data import OTHER_KEYS, otherwise
from gpuwarden.health.model import Evidence
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

NAME_MOST = 200
SLOTS_MOST = 64
ALSO_MOST = 8
_TOUCH = "touch"
_DIGITS_MOST = 19


def printable(most: int) -> Callable[[str], str]:
    """Return a function that cuts a text to `most` characters, each printable."""

    def cleaned(text: str) -> str:
        text = text[:most]
        return text if text.isprintable() else "".join(char if char.isprintable() else "?" for char in text)

    return cleaned


Name = Annotated[str, printable(NAME_MOST)]
Word = Annotated[str, printable(64)]
Sentence = Annotated[str, printable(300)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Used(Use):
    """JOB_USED. What is nothing is left out."""

    slots: str
    """Separated by spaces, as all lists here."""
    pids: str = ""
    energy_at: str = ""
    """Pairs of slot and millijoules, as `0000:10:00.0=12`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun(Used):
    """JOB_BEGUN. In a checkpoint with what it used, and what touched it."""

    uid: int | None = None
    user: Word = ""
    job_name: Word = ""
    also: str = ""
    used: Stamp | None = None
    """When it used that; None if nothing was written down."""
    touches: Evidence = field(metadata=OTHER_KEYS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended(Begun):
    """JOB_ENDED."""

    began: Stamp | None
    boot: Word = ""
    """In which it began; empty: in that of its end."""
    known_from: Word
    state: Word = ""
    exit_code: int | None = None
    signal: int | None = None
    by: Word = ""
    nodes: int | None = None
    failed_node: Word = ""
    cause: Cause = field(metadata=otherwise(Cause.NOT_SEEN))
    certainty: Certainty = field(default=Certainty.CERTAIN)
    sentence: Sentence = ""
    code: Name = ""
    slot: Word = ""
    serial: Word = ""
    left_out: int = 0
    """Short jobs since the record before that have none, since they ended well or there were too many."""


# --- lists in one text


def slots_of(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(printable(32)(word) for word in text.split()[:SLOTS_MOST]))


def names_of(text: str) -> tuple[str, ...]:
    return tuple(printable(NAME_MOST)(word) for word in text.split()[:ALSO_MOST])


def pids_of(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split() if _is_number(word))[-PIDS_MOST:]


def counters_of(text: str) -> dict[str, int]:
    pairs = (word.partition("=") for word in text.split()[:SLOTS_MOST])
    return {printable(32)(slot): int(count) for slot, _, count in pairs if _is_number(count)}


def counters_text(counters: Mapping[str, int]) -> str:
    return " ".join(f"{slot}={count}" for slot, count in counters.items())


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS_MOST


# --- touches


def touches_data(touches: tuple[Touch, ...]) -> dict[str, str]:
    """Return the keys of these touches."""
    return {f"{_TOUCH}{n}": _text(touch) for n, touch in enumerate(touches)}


def _text(touch: Touch) -> str:
    until = ("", "") if touch.until is None else (touch.until.boottime, touch.until.wall)
    pid = "" if touch.pid is None else touch.pid
    values = (touch.what, touch.detail, touch.at.boottime, touch.at.wall, *until, touch.slot, pid, touch.count)
    return "\t".join(map(str, (*values, touch.follows)))


def touches_of(data: Evidence) -> tuple[Touch, ...]:
    """Return the touches of such keys, without those that are none."""
    return tuple(_touches(data))


def _touches(data: Evidence) -> Iterator[Touch]:
    for n in range(TOUCHES_MOST):
        text = data.get(f"{_TOUCH}{n}")
        try:
            if isinstance(text, str):
                yield _touch(text)
        except ValueError:
            continue


def _touch(text: str) -> Touch:
    """Raises ValueError for a text that was not written so."""
    kind, detail, boottime, wall, until, until_wall, slot, pid, count, follows = text.split("\t")
    kind, detail, slot, follows = (printable(NAME_MOST)(value) for value in (kind, detail, slot, follows))
    return Touch(
        what=kind,
        detail=detail,
        at=_stamp(boottime, wall),
        until=_stamp(until, until_wall) if until else None,
        slot=slot,
        pid=_whole(pid) if pid else None,
        count=_whole(count),
        follows=follows,
    )


def _whole(text: str) -> int:
    if not _is_number(text):
        raise ValueError("no number")
    return int(text)


def _stamp(boottime: str, wall: str) -> Stamp:
    times = (float(boottime), float(wall))
    if not all(map(math.isfinite, times)):
        raise ValueError("no time")
    return Stamp(*times)
