"""The leaf switch of a node, as topology.conf names it (plugin topology/tree), or its block (topology/block, as of an NVL72)."""

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

    Raises SlurmError, also where there is no topology. Reads the whole topology: a node's name was an argument of this
    command, and became an option in Slurm 23.11. By one request where the default topology has the node. From 25.05 on there may be
    several (topology.yaml), of which a partition has one; without a name the command shows the default one, which may be flat.
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
    """Returns the first switch at the lowest level, or block, that has this node."""
    for line in text.splitlines():
        values = dict(word.split("=", 1) for word in line.split() if "=" in word)
        name = values.get("SwitchName", "") if values.get("Level") == "0" else values.get("BlockName", "")
        if name and in_hostlist(node, values.get("Nodes", "")):
            return name
    return ""
