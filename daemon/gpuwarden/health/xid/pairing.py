"""One Xid, up to three reports: the kernel log, NVML's event set and DCGM report the same one, in any order.

A report is paired with a recent Xid that another source reported and this source has not. Otherwise it is a new Xid.
Xids that wait for further reports are kept as numbers for each set of sources that have reported, so that a storm of
any length needs no more memory than one line.
"""

from __future__ import annotations

from gpuwarden.health.model import Key
from gpuwarden.health.state import Unpaired
from gpuwarden_collectors.event_facts import Source

PAIRED_WITHIN = 5.0
"""Seconds between the kernel log and NVML: the driver writes both within a millisecond, our readers wake within one."""
PAIRED_WITHIN_DCGM = 30.0
"""DCGM is asked every 15 s, and one of its answers may take as long again."""

_Open = dict[tuple[Key, str], tuple[float, int]]
_JOIN = "+"


def _name(sources: tuple[Source, ...]) -> str:
    return _JOIN.join(sorted(source.value for source in sources))


def _partners(source: Source) -> tuple[tuple[str, str, float], ...]:
    """The sets of other sources that may have reported already, rather two than one; with this one; and within what time."""
    first, second = (each for each in Source if each is not source)
    sets = ((first, second), (first,), (second,))
    slow = [source is Source.DCGM or reported == (Source.DCGM,) for reported in sets]
    within = [PAIRED_WITHIN_DCGM if late else PAIRED_WITHIN for late in slow]
    return tuple(
        (_name(reported), _name((*reported, source)), most) for reported, most in zip(sets, within, strict=True)
    )


_PARTNERS = {source: _partners(source) for source in Source}
_EVERYBODY = _name(tuple(Source))


def paired(unpaired: _Open, key: Key, source: Source, at: float) -> bool:
    """True if another source has reported this Xid; if not, it is open from now on. Changes `unpaired`."""
    for reported, reported_now, within in _PARTNERS[source]:
        then, count = unpaired.get((key, reported), (0.0, 0))
        if count > 0 and abs(at - then) <= within:
            unpaired[key, reported] = (then, count - 1)
            if reported_now != _EVERYBODY:
                _add(unpaired, (key, reported_now), then)
            return True
    _add(unpaired, (key, source.value), at)
    return False


def _add(unpaired: _Open, place: tuple[Key, str], at: float) -> None:
    then, count = unpaired.get(place, (at, 0))
    unpaired[place] = (max(at, then), count + 1 if abs(at - then) <= PAIRED_WITHIN_DCGM else 1)


def young(unpaired: Unpaired, newest: float) -> Unpaired:
    """Unpaired reports without those that no report can be paired with any more."""
    return {
        place: (at, count) for place, (at, count) in unpaired.items() if count > 0 and newest - at <= PAIRED_WITHIN_DCGM
    }
