"""The black box as metrics. gpuwarden_component_up shows whether it can be written."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpuwarden.features.black_box.shown import Shown, of
from gpuwarden.publish.metrics.lines import COUNTER, GAUGE
from gpuwarden.publish.metrics.row import Metric, Sample
from gpuwarden.publish.snapshot import Snapshot


def _metric(name: str, kind: str, value: Callable[[Shown], float], text: str) -> Metric:
    def samples(snapshot: Snapshot) -> Iterator[Sample]:
        if (shown := of(snapshot)) is not None:
            yield (), value(shown)

    return Metric(name, kind, (), samples, text, default=False)


METRICS: tuple[Metric, ...] = (
    _metric(
        "gpuwarden_black_box_seconds",
        GAUGE,
        lambda shown: round(shown.seconds, 1),
        "Time that the ring of the black box holds.",
    ),
    _metric("gpuwarden_black_box_bytes", GAUGE, lambda shown: shown.size, "Size of the ring of the black box on disk."),
    _metric("gpuwarden_black_box_kept", GAUGE, lambda shown: len(shown.boxes), "Frozen black boxes that are kept."),
    _metric(
        "gpuwarden_black_box_lost_records_total",
        COUNTER,
        lambda shown: shown.lost,
        "Records that the black box lost since the daemon started, because the disk did not accept them.",
    ),
)
