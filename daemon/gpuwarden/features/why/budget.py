"""How many records of short jobs the ledger takes. Pure.

A job is short until it is in the ledger: from its begin on, while little of the budget is used, else after a minute, as long as there is
room, else after ten. A node may run thousands of short jobs in an hour; their records must not fill the ledger, and those of jobs that
something touched must still find room.
"""

from __future__ import annotations

from enum import Enum

from gpuwarden.features.why.following import Budget

PER_HOUR, MOST = 40.0, 40.0


class Worth(Enum):
    """What of the budget is left for others, by what a record shows."""

    NEW = 30.0
    """It has begun: if the machine goes down with it in its first minute, it has a record all the same."""
    WELL = 20.0
    """It ended well."""
    FAILED = 10.0
    BEGUN = 5.0
    """It is a minute old."""
    TOUCHED = 0.0


def taken(budget: Budget | None, worth: Worth, now: float, events: int = 1) -> tuple[Budget, bool]:
    """Return the budget after so many events were asked for, and whether they may be written. `now`: seconds of CLOCK_BOOTTIME."""
    tokens, at = (MOST, now) if budget is None else (budget.tokens, budget.at)
    tokens = min(MOST, tokens + max(0.0, now - at) * PER_HOUR / 3_600.0)
    granted = tokens - events >= worth.value
    return Budget(tokens=tokens - events * granted, at=now), granted
