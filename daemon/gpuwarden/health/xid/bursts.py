"""Bursts of kernel log lines of one Xid: their times, signs and PIDs. The rules about repeats use them.

Lines at most `BURST_GAP` apart form one burst, such as a storm or the lines of one crashing job. A *sign* is the part
of a line that a rule reads (`lines.py`). All bursts of an Xid must fit one text field of the ledger, so only the newest
bursts are kept, with the newest signs of the last burst, two signs of each earlier one and two PIDs of each.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuwarden_collectors.dataclass import dataclass, replace

BURST_GAP = 180.0
"""Seconds. NVSentinel also counts lines of one Xid within three minutes as one occurrence."""
BURSTS_KEPT = 8
SIGNS_KEPT, SIGNS_KEPT_LONG = 12, 2
SIGN_MAX = 56  # characters
PIDS_KEPT = 2
OF_A_DAY = "bursts_within_a_day"
"""Evidence key for the number of bursts, in a finding that is raised because they recur."""

_BURST, _SIGN, _PART, _PID, _PIDS = "|", ";", " ", ",", "pid="  # a sign contains neither of the first two


@dataclass(frozen=True, slots=True)
class Burst:
    """A run of lines in quick succession.

    `began`, `ended`: boottime of the first and the last line, to 10 ms. `signs`, `pids`: distinct, newest last.
    """

    began: float
    ended: float
    signs: tuple[str, ...] = ()
    pids: tuple[int, ...] = ()


Bursts = tuple[Burst, ...]
"""Oldest first."""


def joined(signs: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
    """Return `signs` with `more` added: distinct, by last occurrence, at most `SIGNS_KEPT`. "" is not a sign."""
    ordered = dict.fromkeys(signs)
    for sign in more:
        if sign:
            ordered.pop(sign, None)
            ordered[sign[:SIGN_MAX]] = None
    return tuple(ordered)[-SIGNS_KEPT:]


def extended(
    bursts: Bursts, at: float, signs: tuple[str, ...], *, pid: int | None = None, separate: bool = False
) -> Bursts:
    """Return the bursts with lines logged at `at`. A late report of an older line joins the newest burst.

    `pid`: the process that the lines name. `separate`: the lines begin a new burst regardless of the gap.
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
    """Return the bursts as text, because the data of an event holds no lists. `from_text` is the inverse."""
    return _BURST.join(_SIGN.join((_PART.join(_head(burst)), *burst.signs)) for burst in bursts)


def _head(burst: Burst) -> Iterator[str]:
    yield from (repr(burst.began), repr(burst.ended))
    if burst.pids:
        yield f"{_PIDS}{_PID.join(map(str, burst.pids))}"


def from_text(text: str) -> Bursts:
    """Parse bursts from text. Skip malformed parts, for example those of another version or a manual edit."""
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
