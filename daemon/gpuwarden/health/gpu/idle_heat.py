"""Detects an idle GPU that is hotter and draws more power than its idle siblings.

Either unknown work keeps it busy or its cooling fails; both are visible at rest, without the noise of a workload. In
shadow, since no public incident gives numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuwarden.health.detection import Detection, gpu_detection
from gpuwarden.health.model import Key, Sighting, gpu
from gpuwarden.health.state import State
from gpuwarden.health.statistics import median
from gpuwarden.health.view import Sight
from gpuwarden_collectors.facts import GpuFacts

SIBLINGS = 3
HOTTER, MORE_POWER = 25, 15_000
"""Kelvin and milliwatts above the median of its siblings. Own choice: idle GPUs of one baseboard differ by 10 K and 10
W with their position in the air flow (simulated ones too)."""


def gpu_idle_hot(_: State, sight: Sight) -> Detection:
    groups: dict[tuple[str, str], list[GpuFacts]] = {}
    for facts in sight.answering:
        if _idle(facts):
            groups.setdefault((facts.name, facts.board_part), []).append(facts)
    sightings = [sighting for group in groups.values() for sighting in _hot(group)]
    return gpu_detection(sightings, sight.answering)


def _idle(facts: GpuFacts) -> bool:
    """Return True if no process uses the GPU, its utilization is 0 (unknown with MIG), and both readings are known."""
    r = facts.readings
    both_read = r.temperature is not None and r.power_usage_mw is not None
    return both_read and r.utilization_gpu == 0 and not facts.processes and r.mig_mode != 1


def _hot(group: Sequence[GpuFacts]) -> Iterator[Sighting]:
    if len(group) <= SIBLINGS:
        return
    for facts in group:
        siblings = [other for other in group if other is not facts]
        temperature, power = facts.readings.temperature or 0, facts.readings.power_usage_mw or 0
        usual = median([other.readings.temperature or 0 for other in siblings])
        usual_power = median([other.readings.power_usage_mw or 0 for other in siblings])
        if temperature >= usual + HOTTER and power >= usual_power + MORE_POWER:
            evidence = {
                "temperature": temperature,
                "siblings_temperature": round(usual),
                "power_w": round(power / 1000),
                "siblings_power_w": round(usual_power / 1000),
            }
            yield Sighting(Key("gpu_idle_hot", gpu(facts.slot)), evidence)
