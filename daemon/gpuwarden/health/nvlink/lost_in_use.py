"""Tracks NVLinks that went down while a process had the GPU open. A GPU in use is not reset, so a reset cannot explain
these outages.

Covers only what the running daemon observed. Links that are down when a GPU first answers, for example after driver
load, may be waiting for the fabric, and a process may be waiting for them.
"""

from __future__ import annotations

from gpuwarden.health.memory import LinksSeen, State
from gpuwarden.health.view import Sight
from gpuwarden_collectors.dataclass import replace
from gpuwarden_collectors.facts import GpuFacts


def followed_links(state: State, sight: Sight) -> State:
    """Return the state with the links that are active in this pass, and those that went down while in use."""
    if sight.nvml is None:
        return state
    before = state.moments.links_seen
    seen = {facts.slot: _after(before.get(facts.slot), facts) for facts in sight.answering if facts.links}
    return state if seen == before else replace(state, moments=replace(state.moments, links_seen=seen))


def _after(before: LinksSeen | None, facts: GpuFacts) -> LinksSeen:
    active = sum([1 << link.link for link in facts.links if link.active])
    down = sum([1 << link.link for link in facts.links if link.active is False])
    if before is None:
        return LinksSeen(active)
    lost = before.active & down if facts.processes else 0
    return LinksSeen(active, (before.lost_in_use | lost) & down)
