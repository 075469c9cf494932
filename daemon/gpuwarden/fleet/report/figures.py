"""Computes figures from stories: availability, failures, time to repair and hours lost, of a fleet or a part of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import sqrt
from statistics import fmean, median

from gpuwarden.fleet.report.outages import Story
from gpuwarden.fleet.report.spans import total
from gpuwarden_collectors.dataclass import dataclass

HOUR = 3600.0
LEAST = 2
"""Minimum number of values for a mean and a median."""
_Z = 1.6449
"""The 95th percentile of the normal distribution: an interval of 90 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Durations in seconds. Without values all are None; with one value, mean and median are None."""

    count: int
    mean: float | None = None
    median: float | None = None
    shortest: float | None = None
    longest: float | None = None


def spread(values: Sequence[float]) -> Spread:
    if not values:
        return Spread(count=0)
    several = len(values) >= LEAST
    return Spread(
        count=len(values),
        mean=fmean(values) if several else None,
        median=median(values) if several else None,
        shortest=min(values),
        longest=max(values),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of a set of nodes. Hours are node hours, except GPU hours. `availability`: None if nothing is known.

    `availability_least`: if all unknown time had been downtime. `mtbf_hours`: available node hours per failure, None
    for fewer than two; `mtbf_low`, `mtbf_high`: its 90 % interval, if failures are independent. `failures`: those that
    began in the period. `earlier`: those that the node had when it was first seen. `still_out`: outages that have not ended. `gone`: nodes last seen before the end of the period.
    """

    nodes: int
    gpus: int
    known_hours: float
    available_hours: float
    unknown_hours: float
    availability: float | None
    availability_least: float | None
    failures: int
    earlier: int
    still_out: int
    gone: int
    mtbf_hours: float | None
    mtbf_low: float | None
    mtbf_high: float | None
    repair: Spread
    gpu_hours: float
    gpu_hours_lost: float


def figures(stories: Iterable[Story], end: float) -> Figures:
    """Compute the figures. The time to repair covers failures that began and ended in the period."""
    stories = list(stories)
    known_hours = sum(total(story.node.known) for story in stories) / HOUR
    unknown = sum(total(story.unknown) for story in stories) / HOUR
    available = known_hours - sum(total(story.down) for story in stories) / HOUR
    outages = [outage for story in stories for outage in story.outages]
    begun = [outage for outage in outages if outage.began]
    low, high = interval(len(begun))
    return Figures(
        nodes=len(stories),
        gpus=sum(story.node.gpus for story in stories),
        known_hours=known_hours,
        available_hours=available,
        unknown_hours=unknown,
        availability=available / known_hours if known_hours else None,
        availability_least=available / (known_hours + unknown) if known_hours else None,
        failures=len(begun),
        earlier=len(outages) - len(begun),
        still_out=sum(not outage.ended for outage in outages),
        gone=sum(story.node.gone(end) for story in stories),
        mtbf_hours=available / len(begun) if len(begun) >= LEAST else None,
        mtbf_low=available / high if len(begun) >= LEAST else None,
        mtbf_high=available / low if len(begun) >= LEAST else None,
        repair=spread([outage.seconds for outage in begun if outage.ended]),
        gpu_hours=sum(total(story.node.known) * story.node.gpus for story in stories) / HOUR,
        gpu_hours_lost=sum(total(story.down) * story.node.gpus for story in stories) / HOUR,
    )


def interval(count: int) -> tuple[float, float]:
    """Return the 90 % interval for the expected number of failures if `count` were seen (Poisson, Wilson-Hilferty)."""
    return (_chi_square(2 * count, -_Z) / 2 if count else 0.0), _chi_square(2 * count + 2, _Z) / 2


def _chi_square(freedom: int, z: float) -> float:
    part = 2 / (9 * freedom)
    return float(freedom * (1 - part + z * sqrt(part)) ** 3)
