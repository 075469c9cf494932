"""Whether a node may be given a test now: only one that is idle, stays on anyway, and that nobody else is about to use. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpuwarden_collectors.slurm.facts import NodeFacts
from gpuwarden_collectors.slurm.hostlist import in_hostlist
from gpuwarden_collectors.slurm.settings import PartitionSettings, value_of

_HARMLESS = frozenset({"dynamic_norm", "dynamic_future"})
"""Flags of an idle node that say nothing about its use. Of all others, known here or not, the node is left alone."""
_NEVER = ("infinite", "-1", "none")


def unfit(node: NodeFacts, keys: Mapping[str, str], partitions: Sequence[PartitionSettings]) -> str:
    """Why the node gets no test; empty if it may."""
    return next(_reasons(node, keys, partitions), "")


def _reasons(node: NodeFacts, keys: Mapping[str, str], partitions: Sequence[PartitionSettings]) -> Iterator[str]:
    if "cloud" in node.flags:
        yield f"{node.name} is a node of a cloud, which a test would keep running"
    if node.base != "idle" or not node.flags <= _HARMLESS:
        yield f"{node.name} is {node.state}, not idle"
    if not node.gpus:
        yield f"Slurm has no GPU of {node.name}: add Gres=gpu:N to its line in slurm.conf, or to --conf of slurmd -Z"
    if limit := suspended_after(node, keys, partitions):
        yield (
            f"power saving switches {node.name} off when it is idle ({limit}), and a test would keep it on: "
            "add it to SuspendExcNodes to have it tested"
        )


def suspended_after(node: NodeFacts, keys: Mapping[str, str], partitions: Sequence[PartitionSettings]) -> str:
    """The setting by which this node is switched off; empty if it is not."""
    if not value_of(keys, "SuspendProgram") or _excluded(node.name, value_of(keys, "SuspendExcNodes")):
        return ""
    exempt = set(value_of(keys, "SuspendExcParts").split(","))
    if exempt.intersection(node.partitions):
        return ""
    found = {f"SuspendTime of {one.name}": one.suspend_time for one in partitions if one.name in node.partitions}
    for setting, value in {"SuspendTime": value_of(keys, "SuspendTime"), **found}.items():
        if value and value.split()[0].lower() not in _NEVER:
            return f"{setting} {value}"
    return ""


def _excluded(name: str, hostlist: str) -> bool:
    """True if the node is certain to be in the list. `n[1-4]:2` keeps two of these nodes on, whichever, so that none is certain."""
    return bool(hostlist) and ":" not in hostlist and in_hostlist(name, hostlist)
