"""Settings in which one GPU differs from its siblings. What all GPUs of a node have in common is taken as intended, whatever it is.

A board limit of 500 of 700 W on all four (stackhpc/ansible-slurm-appliance#975), persistence mode that reads *off* on all eight
(leptonai/gpud#1318, #1322): both healthy. The same on one of eight was forgotten, or set by a job that did not put it back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from gpuwarden.health.detection import Detection, gpu_detection
from gpuwarden.health.model import Key, Sighting, gpu
from gpuwarden.health.state import State
from gpuwarden.health.view import Sight
from gpuwarden_collectors.facts import GpuFacts

SETTINGS = {"ecc_mode": "ecc_mode", "persistence_mode": "persistence_mode", "power_limit": "power_limit_mw"}
"""By the detail of the finding, the reading."""
FEWEST, ODD_SHARE = 4, 4
"""Siblings of one model that a majority needs, and of how many of them one may be odd: of four one, of eight two."""
TOLERANCE = 0.05
"""By how much of the common value a limit may differ: boards of one model are made with slightly different ones."""


def gpu_misconfigured(_: State, sight: Sight) -> Detection:
    models: dict[str, list[GpuFacts]] = {}
    for facts in sight.answering:
        models.setdefault(facts.name, []).append(facts)
    sightings = [s for alike in models.values() for name in SETTINGS for s in _odd(alike, name)]
    return gpu_detection(sightings, sight.answering)


def _odd(siblings: Sequence[GpuFacts], name: str) -> Iterator[Sighting]:
    values = {f.slot: value for f in siblings if (value := getattr(f.readings, SETTINGS[name])) is not None}
    if len(values) < FEWEST or len(set(values.values())) == 1:
        return
    common, _ = Counter(values.values()).most_common(1)[0]
    odd = {slot: value for slot, value in values.items() if abs(value - common) > TOLERANCE * common}
    if len(odd) * ODD_SHARE <= len(values):
        for slot, value in odd.items():
            yield Sighting(Key("gpu_misconfigured", gpu(slot), name), {"value": value, "siblings": common})
