"""One-sided Fisher's exact test, in integers: is a property more frequent among marked items than by chance?"""

from __future__ import annotations

from math import comb

CHANCE = 0.01
"""Largest significant p after correction for the number of tests; own choice."""
MARKED_LEAST = 5
"""Least number of marked items for a meaningful result."""


def p_value(both: int, marked: int, having: int, total: int) -> float:
    """The probability that at least `both` of `total` items are marked and have the property, by chance.

    `marked` items are marked, `having` have the property. It is the upper tail of the hypergeometric distribution,
    rounded once. Raises ValueError for inconsistent numbers.
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
