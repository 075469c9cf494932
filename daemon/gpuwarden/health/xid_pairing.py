"""One Xid, up to three reports: the kernel log, NVML's event set and DCGM tell of the same one, in any order.

A report is of an Xid that another source has told of already, if there is one that this source has not told of and that is
young enough; else it is news. What is open is kept as numbers for each set of sources that have reported, so that a storm of
any length needs no more memory than one line.
"""

from __future__ import annotations

from gpuwarden.health.model import Key
from gpuwarden.health.state import Unpaired
from gpuwarden_collectors.facts import Source

PAIRED_WITHIN = 5.0
"""Seconds between the kernel log and NVML: the driver writes both within a millisecond, our readers wake within one."""
PAIRED_WITHIN_DCGM = 30.0
"""DCGM is asked every 15 s, and one of its answers may take as long again."""

_ALL = frozenset(source.value for source in Source)
_JOIN = "+"


def paired(unpaired: dict[tuple[Key, str], tuple[float, int]], key: Key, source: Source, at: float) -> bool:
    """Whether another source has told of this Xid; if not, it is open from now on. Changes `unpaired`."""
    told = _told(unpaired, key, source, at)
    if told is None:
        _add(unpaired, key, (source.value,), at)
        return False
    place = key, _JOIN.join(told)
    then, count = unpaired[place]
    unpaired[place] = (then, count - 1)
    _add(unpaired, key, (*told, source.value), then)
    return True


def _told(unpaired: Unpaired, key: Key, source: Source, at: float) -> tuple[str, ...] | None:
    """Sources that have told of an Xid that this one has not told of yet; rather two of them than one."""
    others = sorted(_ALL - {source.value})
    for told in (tuple(others), *((other,) for other in others)):
        then, count = unpaired.get((key, _JOIN.join(told)), (0.0, 0))
        slow = source is Source.DCGM or told == (Source.DCGM.value,)
        if count > 0 and abs(at - then) <= (PAIRED_WITHIN_DCGM if slow else PAIRED_WITHIN):
            return told
    return None


def _add(unpaired: dict[tuple[Key, str], tuple[float, int]], key: Key, told: tuple[str, ...], at: float) -> None:
    if len(told) == len(_ALL):
        return
    place = key, _JOIN.join(sorted(told))
    then, count = unpaired.get(place, (at, 0))
    unpaired[place] = (max(at, then), count + 1 if abs(at - then) <= PAIRED_WITHIN_DCGM else 1)


def young(unpaired: Unpaired, newest: float) -> Unpaired:
    """Without what no report can be paired with any more."""
    return {
        place: (at, count) for place, (at, count) in unpaired.items() if count > 0 and newest - at <= PAIRED_WITHIN_DCGM
    }
