"""A Prometheus histogram: the number of values up to each bound, and the sum and number of all values."""

from __future__ import annotations

from collections.abc import Iterator

from gpuwarden_collectors.dataclass import dataclass, replace

SUM, COUNT = "sum", "count"


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of values: one for each of `bounds`, in ascending order, and one for the values above all of them."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float = 0.0

    @classmethod
    def of(cls, *bounds: float) -> Histogram:
        return cls(bounds, (0,) * (len(bounds) + 1))

    def with_value(self, value: float) -> Histogram:
        index = sum(value > bound for bound in self.bounds)
        counts = tuple(count + (number == index) for number, count in enumerate(self.counts))
        return replace(self, counts=counts, total=self.total + value)

    def samples(self) -> Iterator[tuple[tuple[str, ...], float]]:
        """Yield cumulative counts by label `le`, then the sum and the number, without that label, as SUM and COUNT."""
        below = 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            below += count
            yield ("+Inf" if bound == float("inf") else str(bound),), below
        yield (SUM,), self.total
        yield (COUNT,), below
