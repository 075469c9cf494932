"""Reads the last 30 minutes of readings from the black box, for the plots, and the newest facts of the GPUs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import field
from pathlib import Path

from gpuwarden.features.bundle.box import BoxFile
from gpuwarden.trace.reader import TraceError, TraceReader
from gpuwarden.trace.records import Passed
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import GpuFacts, NvmlFacts

SPAN = 1_800.0
"""Seconds."""
POINTS_MOST = 300
"""Most points of one line. Of several points in the same interval the largest is drawn."""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One plot: a row of the table."""

    title: str
    """Its title, with the unit."""
    value: Callable[[GpuFacts], float | None]


def _links(gpu: GpuFacts) -> float | None:
    counted = [
        count
        for link in gpu.links
        for count in (
            link.crc_flit_errors,
            link.crc_data_errors,
            link.replay_errors,
            link.recovery_errors,
            link.rx_errors,
            link.recovery_failures,
        )
        if count is not None
    ]
    return float(sum(counted)) if counted else None


def _watts(gpu: GpuFacts) -> float | None:
    return None if gpu.readings.power_usage_mw is None else gpu.readings.power_usage_mw / 1000


METRICS = (
    Metric(title="Temperature, °C", value=lambda gpu: gpu.readings.temperature),
    Metric(title="Power, W", value=_watts),
    Metric(title="SM clock, MHz", value=lambda gpu: gpu.readings.clock_sm_mhz),
    Metric(
        title="Uncorrected ECC errors since the driver was loaded",
        value=lambda gpu: gpu.readings.ecc_uncorrected_volatile,
    ),
    Metric(
        title="Corrected ECC errors since the driver was loaded", value=lambda gpu: gpu.readings.ecc_corrected_volatile
    ),
    Metric(title="NVLink errors, all links of a GPU", value=_links),
    Metric(title="PCIe replays since the driver was loaded", value=lambda gpu: gpu.readings.pcie_replays),
)


@dataclass(slots=True)
class Series:
    """The readings in the traces."""

    lines: dict[str, dict[str, list[Point]]] = field(default_factory=dict)
    """By title of the metric and slot of the GPU: time and value, in order."""
    gpus: dict[str, GpuFacts] = field(default_factory=dict)
    """By slot, the newest facts of each GPU."""
    driver: str = ""
    """Version of the driver."""
    unread: list[str] = field(default_factory=list)
    """Traces that could not be read completely, and why."""


def series_of(files: Iterable[BoxFile], work: Path) -> Series:
    """Read traces, oldest first. A damaged trace is read up to its damage. `work`: a folder for temporary files."""
    series = Series()
    for box_file in files:
        with tempfile.NamedTemporaryFile(dir=work, suffix=".trace.gz") as file:
            file.write(box_file.content)
            file.flush()
            try:
                with TraceReader(Path(file.name)) as trace:
                    for record in trace:
                        if isinstance(record, Passed) and isinstance(facts := record.observation.facts, NvmlFacts):
                            _take(series, facts, record.at.wall)
            except (TraceError, OSError) as error:
                series.unread.append(str(error).replace(file.name, box_file.name))
    series.lines = {
        title: {slot: thinned(points) for slot, points in lines.items()} for title, lines in series.lines.items()
    }
    return series


def _take(series: Series, facts: NvmlFacts, at: float) -> None:
    series.driver = facts.driver_version or series.driver
    for gpu in facts.gpus:
        if gpu.slot and gpu.serial:
            series.gpus[gpu.slot] = gpu
        for metric in METRICS:
            if (value := metric.value(gpu)) is not None and gpu.slot:
                series.lines.setdefault(metric.title, {}).setdefault(gpu.slot, []).append((at, float(value)))


def thinned(points: list[Point]) -> list[Point]:
    """Return the last SPAN seconds in order of time, with at most POINTS_MOST points."""
    if not points:
        return []
    points = sorted(points)
    end = points[-1][0]
    last = [point for point in points if point[0] > end - SPAN]
    if len(last) <= POINTS_MOST:
        return last
    largest: dict[int, Point] = {}
    for at, value in last:
        place = int((at - end + SPAN) / SPAN * POINTS_MOST)
        if place not in largest or value > largest[place][1]:
            largest[place] = (at, value)
    return [largest[place] for place in sorted(largest)]
