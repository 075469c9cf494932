"""Reads a period from Prometheus, in chunks of steps.

A step covers the time since the previous step. Windows of one step are read, so that neither staleness markers nor
Prometheus' lookback matter: a series without a sample in the step is absent. A known, healthy node in service transfers
no data: for known nodes only changes are read, for all other sets only active series.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from gpuwarden.fleet.report.collected import BEGAN, CEASED, Collected, Set
from gpuwarden.fleet.report.spans import Span
from gpuwarden.prometheus.access import Access
from gpuwarden.prometheus.client import PrometheusError, Results, Sample, Times, TooLargeError, query
from gpuwarden_collectors.dataclass import dataclass

Progress = Callable[[float], None]
"""Called with the start time of the next chunk."""

_NOW = "last_over_time(gpuwarden_node_info[{step}s])"
_BEFORE = "last_over_time(gpuwarden_node_info[{step}s] offset {step}s)"
CHANGES: Mapping[str, str] = {BEGAN: f"{_NOW} unless {_BEFORE}", CEASED: f"{_BEFORE} unless {_NOW}"}
"""Nodes that are known now but not in the previous step, and the reverse."""
SETS: Mapping[str, str] = {
    "failed": 'last_over_time(gpuwarden_node_health{{state="failure"}}[{step}s]) == 1',
    "unschedulable": "last_over_time(gpuwarden_schedulable[{step}s]) == 0",
    "excluded": "last_over_time(gpuwarden_excluded[{step}s]) == 1",
    "findings": 'last_over_time(gpuwarden_finding_info{{severity="failure"}}[{step}s])',
    "lemons": 'last_over_time(gpuwarden_finding_info{{check="lemon_node"}}[{step}s])',
}
"""Sets of series. They are aggregated here, since aggregation would take most of Prometheus' time."""
SLOW: Mapping[str, str] = {
    "machines": "last_over_time(gpuwarden_machine_info[{step}s])",
    "gpus": "max by (cluster, job, instance) (max_over_time(gpuwarden_gpus_expected[{step}s]))",
}
"""Data that rarely changes: read once a day."""
DAY = 86_400
FINEST = 60
STEPS = (1, 2, 5, 10, 15, 30, 60)
NODE_STEPS_MOST = 100_000_000
"""Nodes times steps of a period: over 30 days 2,000 nodes have steps of one minute, 10,000 nodes of five."""
POINTS_MOST = 1_000_000
"""Nodes times steps of one query. Prometheus loads ten times as many samples; its default limit is 50 million."""
STEPS_MOST = 10_000
"""Steps of one query. Prometheus' limit is 11,000."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The data of a period. `step`: seconds."""

    period: Span
    step: int
    sets: Mapping[str, Set]
    slow: Mapping[str, list[Sample]]
    warnings: tuple[str, ...]


def read(access: Access, until: float | None, seconds: float, timeout: float, progress: Progress) -> Reading:
    """Read the `seconds` before `until`, or before now. `timeout`: for one query. Raises PrometheusError."""
    until, nodes, interval = _size(access, until, seconds, timeout)
    step = _step(nodes, interval, seconds)
    end = until // step * step
    start = end - max(2, seconds // step) * step
    chunks = _Chunks(access, nodes, timeout, progress)
    collected = Collected(step)
    first, every = Times(start + step, start + step, step), Times(start + step, end, step)
    for queries, times in (({BEGAN: _NOW}, first), (CHANGES, replace(every, start=start + 2 * step)), (SETS, every)):
        for results in chunks.results({name: text.format(step=step) for name, text in queries.items()}, times):
            collected.add(results)
    days = math.ceil((end - start) / DAY)
    day = math.ceil((end - start) / days)
    slow: dict[str, list[Sample]] = defaultdict(list)
    daily = Times(end - (days - 1) * day, end, day)
    for results in chunks.results({name: text.format(step=day) for name, text in SLOW.items()}, daily):
        for name, samples in results.samples.items():
            slow[name] += samples
    return Reading((start, end), step, collected.sets(end), slow, tuple(collected.warnings))


def _size(access: Access, until: float | None, seconds: float, timeout: float) -> tuple[float, int, float]:
    """Return the end, the most nodes of a sample, and the longest scrape interval of the jobs that did not just begin.

    Raises PrometheusError.
    """
    now = query(access, {"now": "vector(time())"}, timeout).samples["now"][0].value
    until = now if until is None else min(now, until)
    times = Times(until - max(0.0, seconds - DAY / 4) // (DAY / 4) * (DAY / 4), until, DAY // 4)
    queries = {
        "nodes": "count(group by (cluster, job, instance) (last_over_time(gpuwarden_node_info[6h])))",
        "scrapes": "max by (job) (count_over_time(gpuwarden_node_info[10m]) and last_over_time(gpuwarden_node_info[10m] offset 10m))",
    }
    samples = query(access, queries, timeout, times=times).samples
    if not samples["nodes"]:
        raise PrometheusError(
            f"{access.url} has no series of gpuwarden in this period: does it scrape the daemons (port 9839), and keep data for so long?"
        )
    scrapes: dict[str, float] = defaultdict(float)
    for sample in samples["scrapes"]:
        job = sample.labels.get("job", "")
        scrapes[job] = max(scrapes[job], sample.value)
    interval = 600 / min(scrapes.values()) if scrapes else FINEST
    return until, int(max(sample.value for sample in samples["nodes"])), interval


def _step(nodes: int, interval: float, seconds: float) -> int:
    """Return the finest step with at least two scrapes of each node that keeps the number of steps bounded."""
    least = FINEST if interval <= FINEST / 2 else math.ceil(2 * interval / FINEST) * FINEST
    return next(
        (least * times for times in STEPS if nodes * seconds / (least * times) <= NODE_STEPS_MOST), least * STEPS[-1]
    )


class _Chunks:
    """Reader of steps in chunks. If a chunk is too large or too slow for Prometheus, it and later ones are halved."""

    def __init__(self, access: Access, nodes: int, timeout: float, progress: Progress) -> None:
        self._access, self._timeout, self._progress = access, timeout, progress
        self._most = max(1, min(STEPS_MOST, POINTS_MOST // max(1, nodes)))

    def results(self, queries: Mapping[str, str], times: Times) -> Iterator[Results]:
        """Yield the results of each chunk in order. Raises PrometheusError; TooLargeError if one step is too large."""
        at = times.start
        while at <= times.end:
            self._progress(at)
            end = min(times.end, at + (self._most - 1) * times.step)
            try:
                yield query(self._access, queries, self._timeout, times=Times(at, end, times.step))
            except TooLargeError:
                if self._most == 1:
                    raise
                self._most //= 2
            else:
                at = end + times.step
