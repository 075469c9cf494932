"""Detects vital readings of a GPU that worked before and now fail with an unknown error, while a sibling answers them.

NVML lists such a GPU and answers other calls about it: it is half dead. An unsupported or forbidden reading has another
error, and a reading that never worked since the daemon started is not missed. A restarted daemon must see an answer
first, unless the loss is already recorded, which it is from its first pass on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from operator import attrgetter

from gpuwarden.health.detection import Detection, gpu_detection
from gpuwarden.health.memory import State, Vital
from gpuwarden.health.model import Key, Severity, Sighting, gpu
from gpuwarden.health.view import Sight
from gpuwarden_collectors.dataclass import replace
from gpuwarden_collectors.facts import GpuFacts

VITAL: Mapping[str, str] = {
    "nvmlDeviceGetTemperatureV": "temperature",
    "nvmlDeviceGetTemperature": "temperature",
    "nvmlDeviceGetMemoryInfo": "memory_total_bytes",
    "nvmlDeviceGetPowerUsage": "power_usage_mw",
    "nvmlDeviceGetPerformanceState": "performance_state",
    "nvmlDeviceGetUtilizationRates": "utilization_gpu",
}
"""Calls, of which every working GPU answers some (`nvml/readings.py`), and their readings."""
UNKNOWN_ERROR = 999
"""nvml.h, NVML_ERROR_UNKNOWN."""
AFTER = 120.0
"""Seconds for which the reading must fail in every pass."""
_NAMES = tuple(dict.fromkeys(VITAL.values()))
_values = attrgetter(*(f"readings.{name}" for name in _NAMES))


def followed_readings(state: State, sight: Sight) -> State:
    """Return the state with the readings that answered and those that fail in this pass."""
    at = sight.view.nvml.at
    if sight.nvml is None or at is None:
        return state
    vital, changed = state.moments.vital, dict[str, Vital]()
    for facts in sight.answering:
        before = vital.get(facts.slot)
        values = _values(facts)
        if before is not None and not before.failing and values.count(None) == before.silent:
            continue  # the common case
        now = _after(before, facts, at.boottime, values)
        if now != before:
            changed[facts.slot] = now
    return replace(state, moments=replace(state.moments, vital={**vital, **changed})) if changed else state


def _after(before: Vital | None, facts: GpuFacts, at: float, values: tuple[object, ...]) -> Vital:
    answered = frozenset(name for name, value in zip(_NAMES, values, strict=True) if value is not None)
    since = {} if before is None else dict(before.failing)
    failing = tuple((name, since.get(name, at)) for name in _failing(facts))
    silent = -1 if failing else values.count(None)
    return Vital(answered if before is None else before.answered | answered, failing, silent)


def _failing(facts: GpuFacts) -> list[str]:
    calls = {error.call for error in facts.errors if error.code == UNKNOWN_ERROR}
    names = {VITAL[call] for call in calls if call in VITAL}
    return [name for name in _NAMES if name in names and getattr(facts.readings, name) is None]


def gpu_readings_lost(state: State, sight: Sight) -> Detection:
    sightings, examined = [], []
    tracks = state.tracks_of("gpu_readings_lost")
    tracked = {track.key.subject.slot for track in tracks}
    failed = {track.key.subject.slot for track in tracks if track.raised and track.severity is Severity.FAILURE}
    for facts in sight.answering:
        vital = state.moments.vital.get(facts.slot)
        if vital is None or not vital.failing:
            examined.append(facts)
            continue
        missed = [
            (name, since)
            for name, since in vital.failing
            if (name in vital.answered or facts.slot in tracked) and _sibling_answers(name, facts, sight)
        ]
        lost = [name for name, since in missed if sight.now.boottime - since >= AFTER]
        if missed:
            severity = Severity.FAILURE if len(lost) > 1 or facts.slot in failed else Severity.WARNING
            evidence = {"readings": ", ".join(name for name, _ in missed), "answer": "unknown error"}
            rise = 0.0 if lost else math.inf
            sightings.append(Sighting(Key("gpu_readings_lost", gpu(facts.slot)), evidence, severity, rise=rise))
    return gpu_detection(sightings, examined)


def _sibling_answers(name: str, facts: GpuFacts, sight: Sight) -> bool:
    return any(
        other.name == facts.name and getattr(other.readings, name) is not None
        for other in sight.answering
        if other is not facts
    )
