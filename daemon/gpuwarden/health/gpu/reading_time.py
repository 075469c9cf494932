"""Detects passes over the GPUs that take longer than usual: a driver that may be about to hang.

The usual duration is learned from the daemon's first passes in this boot and then fixed, so that a driver that slowly
degrades does not become usual. It is not durable: a restarted daemon learns it again, but a finding, even one not yet
raised, keeps the duration that it was compared with.
"""

from __future__ import annotations

from gpuwarden.health.detection import NOTHING, Detection, node_detection
from gpuwarden.health.memory import ReadingTime, State
from gpuwarden.health.model import NODE, Evidence, Key, Sighting
from gpuwarden.health.statistics import median
from gpuwarden.health.view import Sight
from gpuwarden_collectors.dataclass import replace
from gpuwarden_collectors.facts import GpuAnswer, NvmlFacts

LEARNED_FROM = 24
"""Passes, for two minutes. Their median ignores slow ones, such as those of a driver during initialisation."""
LONGER = 1.5
"""Seconds above the usual duration. Own choice: eight GPUs take some hundredths of a second; the deadline is 10 s."""
_KEY = Key("driver_slow", NODE)


def followed_reading_time(state: State, sight: Sight) -> State:
    """Return the state with the duration of this pass, until enough passes were learned."""
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
    """Return the duration of this pass in seconds, without GPUs that did not answer: they have other findings."""
    if nvml is None or nvml.read_seconds is None:
        return None
    silent = sum(gpu.read_seconds or 0.0 for gpu in nvml.gpus if gpu.answer is not GpuAnswer.OK)
    return round(nvml.read_seconds - silent, 1)


def _usual(state: State) -> float | None:
    """Return the usual seconds of a pass: those in the finding's evidence, else the learned ones, else None."""
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
