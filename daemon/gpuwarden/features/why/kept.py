"""Limits how many records are kept: a user with many jobs displaces their own records only. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from gpuwarden.features.why.model import Record


def kept(records: Iterable[Record], most: int) -> tuple[Record, ...]:
    """Return at most so many records, the oldest first. Dropped are the oldest of the user who has most."""
    left = [*records]
    count = Counter(record.epoch.uid for record in left)
    while len(left) > most:
        user = max(count, key=count.__getitem__)
        del left[next(n for n, record in enumerate(left) if record.epoch.uid == user)]
        count[user] -= 1
    return tuple(left)
