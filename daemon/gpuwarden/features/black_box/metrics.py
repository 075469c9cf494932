"""The black box as metrics. Whether it can be written is gpuwarden_component_up."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpuwarden.features.black_box.shown import Shown, of
from gpuwarden.publish.metrics.lines import COUNTER, GAUGE
from gpuwarden.publish.metrics.row import Metric, Sample
from gpuwarden.publish.snapshot import Snapshot


def _one(value: Callable[[Shown], float]) -> Callable[[Snapshot], Iterator[Sample]]:
    def samples(snapshot: Snapshot) -> Iterator[Sample]:
        if (shown := of(snapshot)) is not None:
            yield (), value(shown)

    return samples


METRICS: tuple[Metric, ...] = (
    Metric(
        "gpuwarden_black_box_seconds",
        GAUGE,
        (),
        _one(lambda shown: round(shown.seconds, 1)),
        "Time that the ring of the black box holds.",
        default=False,
    ),
    Metric(
        "gpuwarden_black_box_bytes",
        GAUGE,
        (),
        _one(lambda shown: shown.size),
        "Size of the ring of the black box on disk.",
        default=False,
    ),
    Metric(
        "gpuwarden_black_box_kept",
        GAUGE,
        (),
        _one(lambda shown: len(shown.boxes)),
        "Frozen black boxes that are kept.",
        default=False,
    ),
    Metric(
        "gpuwarden_black_box_lost_records_total",
        COUNTER,
        (),
        _one(lambda shown: shown.lost),
        "Records that the black box lost since the daemon started: the disk did not take them.",
        default=False,
    ),
)
