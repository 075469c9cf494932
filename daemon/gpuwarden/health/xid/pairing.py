"""Pairs the reports of one Xid by the kernel log, NVML's event set and DCGM, which arrive in any order.

A report is paired with a recent Xid that another source has reported and this source has not. Otherwise it is a new
Xid. Xids with outstanding reports are kept as a count for each set of sources that have reported, so a storm of any
length needs no more memory than one line.
"""

from __future__ import annotations

from gpuwarden.health.model import Key
from gpuwarden.health.state import Unpaired
from gpuwarden_collectors.event_facts import Source

PAIRED_WITHIN = 5.0
"""Seconds between kernel log and NVML. The driver writes both within a millisecond; our readers wake within another."""
PAIRED_WITHIN_DCGM = 30.0
"""Seconds. DCGM is polled every 15 s, and an answer may take another 15 s."""

_Open = dict[tuple[Key, str], tuple[float, int]]
_JOIN = "+"


def _name(sources: tuple[Source, ...]) -> str:
    return _JOIN.join(sorted(source.value for source in sources))


def _partners(source: Source) -> tuple[tuple[str, str, float], ...]:
    """Return each set of other sources (both first): its name, its name with this source, and the longest delay."""
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
    """Return True if another source has reported this Xid. Otherwise add it to `unpaired`, in place."""
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
    """Return the unpaired reports that a further report can still match."""
    return {
        place: (at, count) for place, (at, count) in unpaired.items() if count > 0 and newest - at <= PAIRED_WITHIN_DCGM
    }
