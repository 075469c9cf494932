"""Readings of the GPUs that take longer than they did: a driver that may be on the way to hanging.

What a pass takes here is learned from the first passes of this boot, and stays: a driver that becomes slower and slower is no custom. Of
moments; a restarted daemon learns anew, but a finding, and one that rises, keeps what it was measured by.
"""

from __future__ import annotations

from dataclasses import replace

from gpuwarden.health.detection import NOTHING, Detection, node_detection
from gpuwarden.health.memory import ReadingTime, State
from gpuwarden.health.model import NODE, Evidence, Key, Sighting
from gpuwarden.health.statistics import median
from gpuwarden.health.view import Sight
from gpuwarden_collectors.facts import GpuAnswer, NvmlFacts

LEARNED_FROM = 24
"""Passes: two minutes of them. Their median lets slow ones be, as those of a driver that is being initialised."""
LONGER = 1.5
"""Seconds above it: own choice. Eight GPUs take some hundredths of a second, and 10 s are the deadline."""
_KEY = Key("driver_slow", NODE)


def followed_reading_time(state: State, sight: Sight) -> State:
    """The state with what this pass took, until enough was learned."""
    at, learned, taken = sight.view.nvml.at, state.moments.reading_time, _taken(sight.nvml)
    if taken is None or at is None or learned.usual is not None or at.boottime <= learned.at:
        return state
    passes = (*learned.passes, taken)
    usual = median(passes) if len(passes) >= LEARNED_FROM else None
    return replace(
        state,
        moments=replace(state.moments, reading_time=ReadingTime(at.boottime, passes if usual is None else (), usual)),
    )


def driver_slow(state: State, sight: Sight) -> Detection:
    taken, usual = _taken(sight.nvml), _usual(state)
    if sight.nvml is None or taken is None or usual is None:
        return NOTHING
    if taken < usual + LONGER:
        return node_detection(())
    evidence: Evidence = {"read_seconds": taken, "usual_read_seconds": usual, **_slowest(sight.nvml)}
    return node_detection((Sighting(_KEY, evidence),))


def _taken(nvml: NvmlFacts | None) -> float | None:
    """Seconds that this pass took. GPUs that gave no answer are left out: they have findings of their own."""
    if nvml is None or nvml.read_seconds is None:
        return None
    silent = sum(gpu.read_seconds or 0.0 for gpu in nvml.gpus if gpu.answer is not GpuAnswer.OK)
    return round(nvml.read_seconds - silent, 1)


def _usual(state: State) -> float | None:
    """Seconds that a pass usually takes: what the finding was measured by, else what was learned; None if neither is known."""
    track = state.tracks.get(_KEY)
    before = None if track is None else track.evidence.get("usual_read_seconds")
    return float(before) if isinstance(before, (int, float)) else state.moments.reading_time.usual


def _slowest(nvml: NvmlFacts) -> Evidence:
    answering = (gpu for gpu in nvml.gpus if gpu.answer is GpuAnswer.OK)
    times = {gpu.slot: gpu.read_seconds for gpu in answering if gpu.slot and gpu.read_seconds}
    if not times:
        return {}
    slot = max(times, key=lambda slot: times[slot])
    return {"slowest_gpu": slot, "slowest_gpu_seconds": times[slot]}
