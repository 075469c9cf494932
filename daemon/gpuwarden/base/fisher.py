"""Fisher's exact test, one-sided: is a property found more often among the marked than chance would have it? In whole numbers."""

from __future__ import annotations

from math import comb

CHANCE = 0.01
"""Own choice: the most that p may be once it is corrected for the number of tests."""
MARKED_LEAST = 5
"""Fewer marked ones show nothing by what they have in common."""


def p_value(both: int, marked: int, having: int, total: int) -> float:
    """The chance that of `total`, `marked` of them and `having` the property, at least `both` are marked and have it.

    The upper tail of the hypergeometric distribution, rounded once. Raises ValueError for numbers that no such table has.
    """
    most = min(marked, having)
    if not (0 <= both <= most and max(marked, having) <= total and marked + having - both <= total):
        raise ValueError(f"no table has {both} of {marked} marked and {having} having it, of {total}")
    term = comb(having, both) * comb(total - having, marked - both)
    tail = 0
    for count in range(both, most + 1):
        tail += term
        term = term * (having - count) * (marked - count) // ((count + 1) * (total - having - marked + count + 1))
    return tail / comb(total, marked)
