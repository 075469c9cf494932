"""Exact bounds of 95 % confidence, by bisection: no library is needed for two sums."""

from __future__ import annotations

import math
from collections.abc import Callable

_TAIL = 0.025


def _root(rising: Callable[[float], float], low: float, high: float) -> float:
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return (low + high) / 2


def _poisson_at_most(count: int, mean: float) -> float:
    return sum(math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(count + 1)) if mean else 1.0


def rate(count: int, exposure: float) -> tuple[float, float]:
    """Bounds of the rate per unit of `exposure` behind `count` events. With none, the upper one is the rule of three:
    one-sided, 3 divided by the exposure.
    """
    if count == 0:
        return 0.0, -math.log(2 * _TAIL) / exposure
    most = 10.0 * count + 100.0
    low = _root(lambda mean: 1 - _poisson_at_most(count - 1, mean) - _TAIL, 0.0, most)
    high = _root(lambda mean: _TAIL - _poisson_at_most(count, mean), 0.0, most)
    return low / exposure, high / exposure


def _binomial_at_most(count: int, trials: int, share: float) -> float:
    return sum(math.comb(trials, k) * share**k * (1 - share) ** (trials - k) for k in range(count + 1))


def proportion(count: int, trials: int) -> tuple[float, float]:
    """Clopper and Pearson's bounds of the share behind `count` of `trials`; one-sided where it is none or all."""
    tail = 2 * _TAIL if count in (0, trials) else _TAIL
    low = 0.0 if count == 0 else _root(lambda p: 1 - _binomial_at_most(count - 1, trials, p) - tail, 0.0, 1.0)
    high = 1.0 if count == trials else _root(lambda p: tail - _binomial_at_most(count, trials, p), 0.0, 1.0)
    return low, high
