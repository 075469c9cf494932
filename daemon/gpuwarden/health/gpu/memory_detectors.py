"""Detectors for memory that degrades or awaits a repair: corrected errors, remapped rows, repair status."""

from __future__ import annotations

from itertools import pairwise

from gpuwarden.health.detection import Detection, Detector, gpu_detection, per_gpu
from gpuwarden.health.gpu.detectors import CORRECTED_PER_HOUR, flag
from gpuwarden.health.gpu.remaps import remaps_lately
from gpuwarden.health.model import Evidence, Key, Sighting, gpu
from gpuwarden.health.state import State
from gpuwarden.health.view import Sight
from gpuwarden.health.windows import Series
from gpuwarden_collectors.facts import GpuFacts

STORM_WINDOW, STORM_WINDOWS, STORM_IN = 600.0, 3, 2
"""Seconds of a window, number of windows, and how many must exceed the rate: a counter jump fills one."""
STORM_LASTS = 900.0
"""Minimum seconds from the first to the last error: a burst of minutes can span the border of two windows."""
STORM = 1_000_000 / 3600 * STORM_WINDOW
"""Corrected errors in a window. Own choice: 64 times below the one known GPU (NVSentinel#1748: 17,700 per second),
1,000 times above the rate that warns."""
PLAUSIBLE = 1_000_000.0
"""Corrected errors per second. A larger step is a jump of the counter."""
NEW_REMAPS = 2
"""Rows remapped for corrected errors in a week."""
MANY_REMAPS = 8
"""Rows remapped for corrected errors in a board's life, as on the GPU of NVSentinel#1748."""
MOST_UNCORRECTABLE = 512
"""Rows remapped for uncorrectable errors (DCGM_FR_UNCORRECTABLE_ROW_REMAP_LIMIT; NVIDIA's policy for a return)."""


def memory_degrading(state: State, sight: Sight, facts: GpuFacts) -> Sighting | None:
    series = state.moments.windows.get((facts.slot, "ecc_corrected_volatile"))
    if series is None:
        return None
    evidence = _storm(series) or _wearing_out(state, sight, facts, series)
    return Sighting(Key("memory_degrading", gpu(facts.slot)), evidence) if evidence else None


def _storm(series: Series) -> Evidence:
    if series.grown - series.samples[0][1] < STORM * STORM_IN:
        return {}
    samples, grown, times = (*series.samples, (series.at, series.grown)), [0] * STORM_WINDOWS, []
    for (at, count), (then, more) in pairwise(samples):
        window = int((series.at - then) / STORM_WINDOW)
        if window < STORM_WINDOWS and 0 < more - count <= PLAUSIBLE * (then - at):
            grown[window] += more - count
            times.append(then)
    if sum([count >= STORM for count in grown]) < STORM_IN or times[-1] - times[0] < STORM_LASTS:
        return {}
    return {"corrected": sum(grown), "seconds": round(times[-1] - times[0])}


def _wearing_out(state: State, sight: Sight, facts: GpuFacts, series: Series) -> Evidence:
    count = facts.readings.remapped_rows_correctable
    new = remaps_lately(state.remaps, facts.uuid, count, sight.now.wall) if count else 0
    if new < NEW_REMAPS:
        return {}
    corrected, seconds = series.growth(3600.0)
    if corrected < CORRECTED_PER_HOUR:
        return {}
    return {"corrected": corrected, "seconds": round(seconds), "rows_remapped_in_7_days": new}


def row_remaps_many(_: State, __: Sight, facts: GpuFacts) -> Sighting | None:
    r = facts.readings
    evidence: Evidence = {
        name: value
        for name, value, least in (
            ("for_corrected_errors", r.remapped_rows_correctable, MANY_REMAPS),
            ("for_uncorrectable_errors", r.remapped_rows_uncorrectable, MOST_UNCORRECTABLE),
            ("banks_with_few_spare_rows", r.remap_banks_low, 1),
            ("banks_without_spare_rows", r.remap_banks_none, 1),
        )
        if value is not None and value >= least
    }
    return Sighting(Key("row_remaps_many", gpu(facts.slot)), evidence) if evidence else None


def row_remap_overdue(_: State, __: Sight, facts: GpuFacts) -> Sighting | None:
    return Sighting(Key("row_remap_overdue", gpu(facts.slot))) if facts.readings.remapped_rows_pending else None


_REPAIRS = {"channel": "repair_channel_pending", "tpc": "repair_tpc_pending"}
"""Reading for each detail of the finding."""


def gpu_repair_pending(_: State, sight: Sight) -> Detection:
    examined = [facts for facts in sight.answering if facts.readings.repair_channel_pending is not None]
    pending = (
        Sighting(Key("gpu_repair_pending", gpu(facts.slot), repair))
        for facts in examined
        for repair, reading in _REPAIRS.items()
        if getattr(facts.readings, reading)
    )
    return gpu_detection(tuple(pending), examined)


DETECTORS: dict[str, Detector] = {
    "memory_degrading": per_gpu(memory_degrading, "ecc_corrected_volatile"),
    "row_remaps_many": per_gpu(row_remaps_many, "remapped_rows_correctable"),
    "row_remap_overdue": per_gpu(row_remap_overdue, "remapped_rows_pending"),
    "gpu_repair_pending": gpu_repair_pending,
    "memory_unrepairable": flag("memory_unrepairable", "memory_unrepairable"),
}
