"""Limits how many records of short jobs the ledger takes. Pure.

A job is short until it is in the ledger. It is written at its begin while little of the budget is used, after a minute
while there is room, else after ten minutes. A node may run thousands of short jobs in an hour: their records must not
fill the ledger, and there must be room for those of jobs that something touched.
"""

from __future__ import annotations

from enum import Enum

from gpuwarden.features.why.following import Budget

PER_HOUR, MOST = 40.0, 40.0


class Worth(Enum):
    """How much of the budget is left for others, by what a record shows."""

    NEW = 30.0
    """It has begun: if the machine goes down in its first minute, it still has a record."""
    WELL = 20.0
    """It ended well."""
    FAILED = 10.0
    BEGUN = 5.0
    """It is a minute old."""
    TOUCHED = 0.0


def taken(budget: Budget | None, worth: Worth, now: float, events: int = 1) -> tuple[Budget, bool]:
    """Return the budget after this request, and whether the events may be written. `now`: boot time in seconds."""
    tokens, at = (MOST, now) if budget is None else (budget.tokens, budget.at)
    tokens = min(MOST, tokens + max(0.0, now - at) * PER_HOUR / 3_600.0)
    granted = tokens - events >= worth.value
    return Budget(tokens=tokens - events * granted, at=now), granted
