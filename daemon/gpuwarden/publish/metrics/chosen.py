"""Selects the series on the page by `publish.series`: the default set, all series, or named ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpuwarden.publish.metrics.dcgm_names import FIELDS, OF_DASHBOARDS, OF_EXPORTER, PREFIX
from gpuwarden.publish.metrics.lines import Number
from gpuwarden.publish.metrics.row import Labels, Metric
from gpuwarden.publish.metrics.table import METRICS
from gpuwarden_collectors.dataclass import dataclass

ALL = frozenset((*(metric.name for metric in METRICS), *(PREFIX + field.name for field in FIELDS)))
"""The name of every metric."""
BY_DEFAULT = frozenset(
    (*(metric.name for metric in METRICS if metric.default), *(PREFIX + name for name in OF_EXPORTER | OF_DASHBOARDS))
)
_WITHOUT_ZEROS = frozenset(metric.name for metric in METRICS if metric.default and not metric.zeros)
_SETS = {"default": BY_DEFAULT, "full": ALL}


@dataclass(frozen=True, slots=True)
class Chosen:
    """The served names, and those of them whose series with value 0 are omitted."""

    names: frozenset[str]
    without_zeros: frozenset[str] = frozenset()

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def samples(self, metric: Metric, samples: Mapping[Labels, Number]) -> Mapping[Labels, Number]:
        if metric.name not in self.without_zeros:
            return samples
        return {labels: value for labels, value in samples.items() if value}


def chosen_series(series: Iterable[str]) -> Chosen:
    """Return the choice for names of metrics, `default` and `full`. A named metric has all its series."""
    words = frozenset(series)
    served = {word: _SETS.get(word, frozenset((word,))) for word in words}
    whole = (names for word, names in served.items() if word != "default")
    return Chosen(
        frozenset().union(*served.values()), _WITHOUT_ZEROS.difference(*whole) if "default" in words else frozenset()
    )


FULL = chosen_series(("full",))
