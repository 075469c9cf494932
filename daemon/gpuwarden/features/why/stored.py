"""The data of job events. Fields are keys in the ledger; see `health/event_data.py`. Pure.

JOB_BEGUN has the time and boot of the job's begin, JOB_ENDED those of its end. Each touch is one key, with its fields
separated by tabs.
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
    """Data of JOB_USED. Empty values are left out."""

    slots: str
    """Separated by spaces, as all lists here."""
    pids: str = ""
    energy_at: str = ""
    """Pairs of slot and millijoules, as `0000:10:00.0=12`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun(Used):
    """Data of JOB_BEGUN; in a checkpoint with use and touches so far."""

    uid: int | None = None
    user: Word = ""
    job_name: Word = ""
    also: str = ""
    used: Stamp | None = None
    """When that use was measured; None if none was stored."""
    touches: Evidence = field(metadata=OTHER_KEYS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended(Begun):
    """JOB_ENDED."""

    began: Stamp | None
    boot: Word = ""
    """Boot in which it began; empty: that of its end."""
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
    """Short jobs since the previous record without one: they ended well, or there were too many."""


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
    """Return the touches in such keys. Malformed ones are skipped."""
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
    """Parse the text of a touch. Raises ValueError if it is malformed."""
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
