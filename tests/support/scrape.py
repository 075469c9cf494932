"""A page of metrics as Prometheus' own parsers read it."""

from __future__ import annotations

from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as _parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as _parse_text

from gpuwarden.publish.metrics.exposition import Renderer
from gpuwarden.publish.snapshot import Snapshot


def parse_text(body: bytes) -> list[Metric]:
    return list(_parse_text(body.decode()))


def parse_openmetrics(body: bytes) -> list[Metric]:
    return list(_parse_openmetrics(body.decode()))  # type: ignore[no-untyped-call]  # the client types only its other parser


class Scrape:
    """All series of a page in text format 0.0.4."""

    def __init__(self, page: bytes) -> None:
        self.samples = [sample for family in parse_text(page) for sample in family.samples]

    def values(self, name: str, **labels: str) -> list[float]:
        """The values of every series with this name and (at least) these labels."""
        return [s.value for s in self.samples if s.name == name and labels.items() <= s.labels.items()]

    def value(self, name: str, **labels: str) -> float | None:
        """The value of the only series with this name and these labels; None if there is none."""
        values = self.values(name, **labels)
        assert len(values) < 2, (name, labels, values)
        return values[0] if values else None

    def labels(self, name: str) -> list[dict[str, str]]:
        return [sample.labels for sample in self.samples if sample.name == name]


def scrape(snapshot: Snapshot, renderer: Renderer | None = None) -> Scrape:
    return Scrape((renderer or Renderer()).render(snapshot).text)
