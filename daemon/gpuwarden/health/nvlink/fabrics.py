"""Which GPUs and switches of a host are in one NVLink fabric, by the other ends of their links or by their clique.

Remembered for a boot, since a GPU that is lost names no links any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from gpuwarden.health.memory import State
from gpuwarden.health.view import Sight
from gpuwarden_collectors.facts import GpuFacts

MOST_IN_A_FABRIC = 16
"""GPUs: the largest NVLink fabric of one node (HGX-2). With more of them here, two are in one only where that is known."""


def followed_fabrics(state: State, sight: Sight) -> State:
    """The state with the fabrics that NVML has named; the same object if none is new."""
    named = _fabrics(sight.answering)
    if all(state.moments.fabrics.get(slot) == fabric for slot, fabric in named.items()):
        return state
    return replace(state, moments=replace(state.moments, fabrics={**state.moments.fabrics, **named}))


def in_one_fabric(state: State, slot: str, other: str) -> bool:
    """True if the NVLinks of one can suffer from the other. If that is not known, all GPUs of a small host can."""
    here, there = state.moments.fabrics.get(slot), state.moments.fabrics.get(other)
    if here is None or there is None:
        return len(state.pins) <= MOST_IN_A_FABRIC
    return here == there


def _fabrics(gpus: Iterable[GpuFacts]) -> Mapping[str, str]:
    """Name of the fabric of each GPU or switch, by slot: its clique, or the first slot among those its
    links connect.
    """
    cliques: dict[str, str] = {}
    joined: dict[str, set[str]] = {}
    for gpu in gpus:
        cluster, clique = gpu.placement.cluster_uuid, gpu.readings.fabric_clique
        if cluster and clique is not None:
            cliques[gpu.slot] = f"{cluster}/{clique}"
        ends = {link.remote for link in gpu.links if link.remote}
        if ends:
            group = set.union({gpu.slot}, ends, *(joined.get(end, set()) for end in (gpu.slot, *ends)))
            joined.update(dict.fromkeys(group, group))
    return {slot: min(group) for slot, group in joined.items()} | cliques
