"""Validates `publish.series`: its names must be metrics, and include those that the breaker queries."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from gpuwarden.config.policy import BreakerOptions
from gpuwarden.config.structure import near
from gpuwarden_collectors.options import Misfit

SETS = ("default", "full")
COUNTED_BY = tuple(
    "gpuwarden_node_info gpuwarden_machine_info gpuwarden_excluded gpuwarden_excluded_since_timestamp_seconds".split()
)
"""The series that the breaker's queries to Prometheus read."""
_KEY = ("publish.series",)


def series_misfits(
    series: Collection[str], breaker: BreakerOptions, metrics: Collection[str] | None
) -> Iterator[Misfit]:
    """Yield the faults. `metrics`: the names of all metrics, or None to skip the check of names."""
    if not series:
        yield _KEY, 'expected "default", "full" or names of metrics, found an empty list'
    named = [name for name in series if name not in SETS]
    for name in (name for name in named if metrics is not None and name not in metrics):
        hint = near(name, (*SETS, *(metrics or ()))) or '; `/metrics` with "full" has all of them'
        yield _KEY, f"{name[:80]!r} is not a metric{hint}"
    missing = [name for name in COUNTED_BY if name not in series]
    if breaker.prometheus and len(named) == len(series) and missing:
        yield _KEY, f"lacks {', '.join(missing)}, by which the breaker counts the fleet (breaker.prometheus)"
