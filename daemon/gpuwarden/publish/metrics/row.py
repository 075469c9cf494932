"""The row of a metric: its name, and the function that returns its samples from the snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gpuwarden.health.model import GpuVerdict
from gpuwarden.publish.metrics.lines import Number
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden_collectors.dataclass import dataclass

Labels = tuple[str, ...]
Sample = tuple[Labels, Number]


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table.

    `samples` yields the values of `labels`, in order, and the number. Of samples with equal labels the last one counts.
    """

    name: str
    kind: str
    labels: Labels
    samples: Callable[[Snapshot], Iterable[Sample]]
    help: str
    default: bool = True
    """Served by default. Otherwise only if `publish.series` asks for it: no rule, dashboard or command reads it."""
    zeros: bool = True
    """False: by default a series with value 0 is omitted, because its absence has the same meaning."""
    omitted: Labels = ()
    """Labels omitted from a sample if empty: Prometheus treats an empty label as one that the target must not have."""


GPU: Labels = ("gpu", "uuid", "pci_bus_id")
"""Labels of GPU metrics."""


def gpu_labels(gpu: GpuVerdict) -> Labels:
    return ("" if gpu.index is None else str(gpu.index), gpu.uuid, gpu.slot)
