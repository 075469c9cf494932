"""Detects a GPU whose NVLinks were never active on this host, while its siblings have all of theirs.

A card without a bridge has no links to miss (NVIDIA/NVSentinel#1481), nor has a single card among bridged pairs: where
links lead from GPU to GPU, the owner chose which cards to bridge. On boards with switches all GPUs have the same links,
so a GPU without any is faulty, even if it never had one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuwarden.health.detection import Detection, gpu_detection
from gpuwarden.health.model import Key, Sighting, gpu
from gpuwarden.health.state import State
from gpuwarden.health.view import Sight
from gpuwarden_collectors.facts import GpuFacts

SIBLINGS = 4
"""Siblings required for comparison. Own choice, as for a setting in which one GPU differs (`gpu/settings.py`)."""


def nvlink_never_up(state: State, sight: Sight) -> Detection:
    groups: dict[tuple[str, str], list[GpuFacts]] = {}
    for facts in sight.answering:
        if not facts.readings.mig_mode:
            groups.setdefault((facts.name, facts.board_part), []).append(facts)
    sightings = [sighting for group in groups.values() for sighting in _dark(state, sight, group)]
    return gpu_detection(sightings, sight.answering)


def _dark(state: State, sight: Sight, group: Sequence[GpuFacts]) -> Iterator[Sighting]:
    dark = [facts for facts in group if _never_up(state, facts)]
    if len(dark) != 1 or len(group) <= SIBLINGS:
        return
    complete = [facts for facts in group if _complete(state, facts)]
    if len(complete) < SIBLINGS or any(link.remote in sight.gpus for facts in complete for link in facts.links):
        return
    links = max(state.pins[facts.slot].links.bit_count() for facts in complete)
    evidence = {"links_of_siblings": links, "siblings": len(complete)}
    yield Sighting(Key("nvlink_never_up", gpu(dark[0].slot)), evidence)


def _never_up(state: State, facts: GpuFacts) -> bool:
    """Return True if no link is active, unless reading them failed, and none was ever active on this board."""
    pin = state.pins.get(facts.slot)
    if pin is None or pin.links or (facts.errors and not facts.links):
        return False
    return all(link.active is False for link in facts.links)


def _complete(state: State, facts: GpuFacts) -> bool:
    pin = state.pins.get(facts.slot)
    active = sum([1 << link.link for link in facts.links if link.active])
    return pin is not None and bool(pin.links) and not pin.links & ~active
