"""The leaf switch of a node, as topology.conf names it (plugin topology/tree), or its block (topology/block, as of an NVL72)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwarden_collectors.slurm.hostlist import in_hostlist

if TYPE_CHECKING:
    from gpuwarden_collectors.slurm.client import Commands


async def read_leaf_switch(commands: Commands) -> str:
    """Returns the leaf switch of this node, or "" if the topology has none, by one request.

    Raises SlurmError, also where there is no topology. Reads the whole topology: a node's name was an argument of this
    command, and became an option in Slurm 23.11.
    """
    name = await commands.node_name()
    return leaf_switch(await commands.ask("cannot read the topology", "scontrol", "show", "topology"), name)


def leaf_switch(text: str, node: str) -> str:
    """Returns the first switch at the lowest level, or block, that has this node."""
    for line in text.splitlines():
        values = dict(word.split("=", 1) for word in line.split() if "=" in word)
        name = values.get("SwitchName", "") if values.get("Level") == "0" else values.get("BlockName", "")
        if name and in_hostlist(node, values.get("Nodes", "")):
            return name
    return ""
