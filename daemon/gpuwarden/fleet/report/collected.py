"""Converts Prometheus' answers to spans as they arrive, so that memory is bounded by the number of changes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from gpuwarden.fleet.report.spans import Span, Spans, toggled, union
from gpuwarden.prometheus.client import Results, Sample

Labels = tuple[tuple[str, str], ...]
"""Names and values, in order."""
Set = Mapping[Labels, Spans]
KNOWN = "known"
NODE = ("cluster", "job", "instance")
NAMED = (*NODE, "node")
LABELS: Mapping[str, tuple[str, ...]] = {
    "failed": NODE,
    "unschedulable": NODE,
    "excluded": (*NODE, "actuator", "cause"),
    "findings": (*NODE, "check", "uuid", "detail"),
    "lemons": NODE,
}
"""Labels that identify the series of each set."""
BEGAN, CEASED = "began", "ceased"
"""Names of the queries for nodes that appear and disappear."""


class Collected:
    """The spans of a period. `step`: seconds that each sample covers."""

    def __init__(self, step: int) -> None:
        self.warnings: list[str] = []
        self._step = step
        self._held: dict[str, dict[Labels, list[Span]]] = {name: defaultdict(list) for name in LABELS}
        self._changes: dict[Labels, list[tuple[float, bool]]] = defaultdict(list)

    def add(self, results: Results) -> None:
        self.warnings += [warning for warning in results.warnings if warning not in self.warnings]
        for name, samples in results.samples.items():
            for sample in samples:
                if name in LABELS:
                    self._extend(self._held[name][_labels(sample, LABELS[name])], sample.at)
                else:
                    labels = tuple(sorted(sample.labels.items()))
                    self._changes[labels].append((sample.at - self._step, name == BEGAN))

    def _extend(self, spans: list[Span], at: float) -> None:
        start = at - self._step
        if spans and spans[-1][0] <= start <= spans[-1][1]:
            spans[-1] = spans[-1][0], max(at, spans[-1][1])
        else:
            spans.append((start, at))

    def sets(self, end: float) -> dict[str, Set]:
        """Return the spans by name and labels, without empty ones. `end`: end of the period."""
        known_spans: dict[Labels, list[Span]] = defaultdict(list)
        for labels, changes in self._changes.items():
            known_spans[tuple((name, dict(labels).get(name, "")) for name in NAMED)] += toggled(sorted(changes), end)
        return {
            name: {labels: spans for labels, of in held.items() if (spans := union(of))}
            for name, held in {**self._held, KNOWN: known_spans}.items()
        }


def _labels(sample: Sample, names: Iterable[str]) -> Labels:
    return tuple((name, sample.labels.get(name, "")) for name in names)
