"""Groups the GPUs and switches of a host by NVLink fabric, from the remote ends of their links or their clique.

Kept for the boot, since a lost GPU no longer reports its links.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpuwarden.health.memory import State
from gpuwarden.health.view import Sight
from gpuwarden_collectors.dataclass import replace
from gpuwarden_collectors.facts import GpuFacts

MOST_IN_A_FABRIC = 16
"""GPUs in the largest NVLink fabric of one node (HGX-2). On larger hosts GPUs share one only if NVML reports it."""


def followed_fabrics(state: State, sight: Sight) -> State:
    """Return the state with the fabrics that NVML reports; the same object if none is new."""
    named = _fabrics(sight.answering)
    if all(state.moments.fabrics.get(slot) == fabric for slot, fabric in named.items()):
        return state
    return replace(state, moments=replace(state.moments, fabrics={**state.moments.fabrics, **named}))


def in_one_fabric(state: State, slot: str, other: str) -> bool:
    """Return True if a fault of one GPU can affect the NVLinks of the other. If unknown, assume it on a small host."""
    here, there = state.moments.fabrics.get(slot), state.moments.fabrics.get(other)
    if here is None or there is None:
        return len(state.pins) <= MOST_IN_A_FABRIC
    return here == there


def _fabrics(gpus: Iterable[GpuFacts]) -> Mapping[str, str]:
    """Return the fabric name of each GPU or switch by slot: its clique, or the first slot that its links connect."""
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
