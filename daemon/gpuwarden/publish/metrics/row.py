"""The row of a metric: what it is called, and how the snapshot becomes its samples."""

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

    `samples` gives the values of `labels`, in their order, with the number. Of equal label values the last counts.
    """

    name: str
    kind: str
    labels: Labels
    samples: Callable[[Snapshot], Iterable[Sample]]
    help: str
    default: bool = True
    """Served by default. Else only by `publish.series`: no rule, dashboard or command reads it."""
    zeros: bool = True
    """False: by default a series of 0 is left out, since its absence says the same."""
    omitted: Labels = ()
    """Labels without which a sample is that has nothing in them: Prometheus takes an empty one for a label that the target must not have."""


GPU: Labels = ("gpu", "uuid", "pci_bus_id")
"""The labels of a metric of GPUs."""


def gpu_labels(gpu: GpuVerdict) -> Labels:
    return ("" if gpu.index is None else str(gpu.index), gpu.uuid, gpu.slot)
