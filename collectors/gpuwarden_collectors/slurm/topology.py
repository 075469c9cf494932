"""Reads the leaf switch of a node (topology/tree), or its block (topology/block, as for an NVL72)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwarden_collectors.slurm.hostlist import in_hostlist
from gpuwarden_collectors.slurm.settings import read_partition_settings

if TYPE_CHECKING:
    from gpuwarden_collectors.slurm.client import Commands

_UNDONE = "cannot read the topology"
_SHOW = ("scontrol", "show", "topology")


async def read_leaf_switch(commands: Commands) -> str:
    """Returns the leaf switch of this node, or "" if no topology has it.

    Raises SlurmError, also without a topology. Reads the whole topology, because the node's name was an argument of
    the command before Slurm 23.11, and is an option since. One request is enough if the default topology has the node.
    From 25.05 on several topologies may exist (topology.yaml), one per partition; without a name the command shows the
    default, which may be flat.
    """
    name = await commands.node_name()
    if switch := leaf_switch(await commands.ask(_UNDONE, *_SHOW), name):
        return switch
    partitions = await read_partition_settings(commands)
    for topology in dict.fromkeys(
        partition.topology for partition in partitions if partition.topology and partition.has(name)
    ):
        if switch := leaf_switch(await commands.ask(_UNDONE, *_SHOW, topology), name):
            return switch
    return ""


def leaf_switch(text: str, node: str) -> str:
    """Returns the first switch of the lowest level, or block, with this node."""
    for line in text.splitlines():
        values = dict(word.split("=", 1) for word in line.split() if "=" in word)
        name = values.get("SwitchName", "") if values.get("Level") == "0" else values.get("BlockName", "")
        if name and in_hostlist(node, values.get("Nodes", "")):
            return name
    return ""
