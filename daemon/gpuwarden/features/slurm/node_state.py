"""Converts Slurm's state of a node to that of policy.

Slurm has one drain flag and one reason for all parties. The prefix of the reason marks a drain as gpuwarden's,
whichever user Slurm records: from 23.02 on Slurm appends its own remarks to the reason and changes user and time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpuwarden.notify.repair import HANDED_OVER
from gpuwarden.policy import reasons
from gpuwarden.policy.model import Flag, FleetCount, Held, NodeState, Owner, Why
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.slurm.facts import NodeFacts, PartitionFacts

_FLAGS: dict[str, Flag] = {
    "reboot_requested": Flag.REBOOT,
    "reboot_issued": Flag.REBOOT,
    "maintenance": Flag.MAINTENANCE,
    "invalid_reg": Flag.INVALID,
    "power_down": Flag.POWER,
    "power_up": Flag.POWER,
    "powering_down": Flag.POWER,
    "powering_up": Flag.POWER,
    "powered_down": Flag.POWER,
}
"""Slurm's names from 22.05 to 26.05; the others (completing, not_responding, planned, reserved, cloud …) forbid nothing."""
_BUSY = ("mixed", "allocated")


def node_state_of(node: NodeFacts, at: Stamp, pool: int | None) -> NodeState:
    """Return the state of the node for policy. A node that is down without a drain is excluded by another party, unless
    gpuwarden wrote the reason.
    """
    flags = frozenset(_FLAGS[flag] for flag in node.flags if flag in _FLAGS)
    if node.is_down:
        flags |= {Flag.DOWN, Flag.SILENT} if "not_responding" in node.flags else {Flag.DOWN}
    if not node.is_out:
        empty = node.is_empty
        return NodeState(at=at, flags=flags, schedulable=_starts_jobs(node), empty=empty, state=node.state, pool=pool)
    out = NodeState(
        at=at,
        owner=Owner.FOREIGN,
        reason=node.reason,
        since=node.reason_at or 0.0,
        flags=flags,
        schedulable=False,
        empty=node.is_empty,
        state=node.state,
        pool=pool,
    )
    own = reasons.parse(node.reason) if _may_be_own(node) else None
    if own is None:
        return out
    return replace(
        out, owner=Owner.OURS, why=own.why, reason=own.text, suffix=own.suffix, boot=own.boot, instance=own.instance
    )


def _starts_jobs(node: NodeFacts) -> bool:
    """Return True if Slurm may start jobs on the node, which is neither down nor drained.

    A reboot without ASAP waits until the node has no jobs, and so does a power-down of a busy node: meanwhile Slurm
    starts new ones (seen with 22.05.8, 24.11.5 and 25.11.7). A drain then changes neither request, and ends no job.
    """
    waiting = {"reboot_requested", "power_down"} if node.base in _BUSY else {"reboot_requested"}
    return node.flags.isdisjoint(_FLAGS.keys() - waiting)


def _may_be_own(node: NodeFacts) -> bool:
    """Return True unless the node has FAIL, which replaces DRAIN and keeps the reason: another party has taken over."""
    return "fail" not in node.flags


def fleet_count_of(node: NodeFacts, partitions: Sequence[PartitionFacts], now: float) -> FleetCount:
    """Return the nodes that share the budget: all members of `partitions`, without those that have no GPU if this node
    has one.

    Every node of a partition must count the same pool, because they rank themselves in it.
    """
    members = {member.name: member for part in partitions for member in part.members}
    pool = [member for member in members.values() if member.has_gpu or not node.has_gpu]
    return FleetCount(node=node.name, pool=len(pool), held=tuple(_held(pool)), now=now)


def largest(partitions: Iterable[PartitionFacts]) -> PartitionFacts:
    """Return the partition with most nodes, the first by name, so that all its nodes choose the same one."""
    return max(sorted(partitions, key=lambda part: part.name), key=lambda part: len(part.members))


def _held(pool: Iterable[NodeFacts]) -> Iterable[Held]:
    for node in pool:
        own = reasons.parse(node.reason) if node.is_out and _may_be_own(node) else None
        if own is not None and own.why is Why.FAILURE:
            yield Held(node.reason_at or 0.0, node.name, own.domain)
        elif _handed_over(node):
            yield Held(node.reason_at or 0.0, node.name)


def _handed_over(node: NodeFacts) -> bool:
    """Return True while HyperPod is to repair the node. It counts as excluded, so that the breaker limits repairs."""
    return node.is_out and not _may_be_own(node) and node.reason.partition(" : ")[0] in HANDED_OVER
