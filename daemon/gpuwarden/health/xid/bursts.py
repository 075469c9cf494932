"""Bursts of kernel log lines of one Xid: their times, signs and PIDs. The rules about repeats use them.

Lines less than `BURST_GAP` apart are one burst, as a storm or one crashing job prints them. A *sign* is the part of a line
that a rule asks for (`lines.py`). Bounded, so that all of it fits one text of the ledger: the newest bursts, the newest
signs of the last one, and of the others only whether they had one sign or several; two pids of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpuwarden_collectors.dataclass import dataclass

BURST_GAP = 180.0
"""Seconds; after NVSentinel, which takes lines of one Xid within three minutes for one occasion."""
BURSTS_KEPT = 8
SIGNS_KEPT, SIGNS_KEPT_LONG = 12, 2
SIGN_MAX = 56  # characters
PIDS_KEPT = 2
OF_A_DAY = "bursts_within_a_day"
"""The evidence key for the number of bursts, in a finding that is raised because they recur."""

_BURST, _SIGN, _PART, _PID, _PIDS = "|", ";", " ", ",", "pid="  # none of the first two is ever part of a sign


@dataclass(frozen=True, slots=True)
class Burst:
    """A run of lines that came shortly after each other.

    `began` and `ended`: boottime of the first and of the last line, to 10 ms. `signs` and `pids`: each once, the newest last.
    """

    began: float
    ended: float
    signs: tuple[str, ...] = ()
    pids: tuple[int, ...] = ()


Bursts = tuple[Burst, ...]
"""Oldest first."""


def joined(signs: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
    """Signs with `more` added: each once, in the order of their last coming, at most `SIGNS_KEPT`. "" is no sign."""
    ordered = dict.fromkeys(signs)
    for sign in more:
        if sign:
            ordered.pop(sign, None)
            ordered[sign[:SIGN_MAX]] = None
    return tuple(ordered)[-SIGNS_KEPT:]


def extended(
    bursts: Bursts, at: float, signs: tuple[str, ...], *, pid: int | None = None, separate: bool = False
) -> Bursts:
    """Bursts with lines that came at `at`. A line that is reported late, from before the newest burst, belongs to that burst.

    `pid`: the process that the lines name. `separate`: they begin another burst, however soon they come.
    """
    at, pids = round(at, 2), () if pid is None else (pid,)
    if not separate and bursts and at - bursts[-1].ended <= BURST_GAP:
        last = bursts[-1]
        others = tuple(earlier for earlier in last.pids if earlier not in pids)
        grown = Burst(last.began, max(last.ended, at), joined(last.signs, signs), (*others, *pids)[-PIDS_KEPT:])
        return (*bursts[:-1], grown)
    before = map(_shortened, bursts[-BURSTS_KEPT + 1 :])
    return (*before, Burst(at, at, joined((), signs), pids))


def _shortened(burst: Burst) -> Burst:
    return burst if len(burst.signs) <= SIGNS_KEPT_LONG else replace(burst, signs=burst.signs[-SIGNS_KEPT_LONG:])


def as_text(bursts: Bursts) -> str:
    """The bursts as text for the data of an event, which has no lists. `from_text` restores them."""
    return _BURST.join(_SIGN.join((_PART.join(_head(burst)), *burst.signs)) for burst in bursts)


def _head(burst: Burst) -> Iterator[str]:
    yield from (repr(burst.began), repr(burst.ended))
    if burst.pids:
        yield f"{_PIDS}{_PID.join(map(str, burst.pids))}"


def from_text(text: str) -> Bursts:
    """Bursts of a text. Parts that another version or a hand wrote and that mean nothing are left out."""
    return tuple(burst for line in text.split(_BURST)[:BURSTS_KEPT] if (burst := _burst(line)) is not None)


def _burst(line: str) -> Burst | None:
    head, *signs = line.split(_SIGN)
    try:
        times, _, pids = head.partition(f"{_PART}{_PIDS}")
        began, ended = map(float, times.split(_PART))
        named = tuple(int(pid) for pid in pids.split(_PID)) if pids else ()
    except ValueError:
        return None
    return Burst(began, ended, joined((), tuple(signs)), named[-PIDS_KEPT:])


def signs_text(signs: tuple[str, ...]) -> str:
    return _SIGN.join(signs)


def signs_of(text: str) -> tuple[str, ...]:
    return tuple(sign for sign in text.split(_SIGN) if sign)
