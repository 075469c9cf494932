"""Finds whether Slurm's power saving switches an idle node off, and by which setting."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from gpuwarden_collectors.slurm.client import Commands
from gpuwarden_collectors.slurm.facts import NodeFacts
from gpuwarden_collectors.slurm.hostlist import in_hostlist
from gpuwarden_collectors.slurm.settings import PartitionSettings, release_of, value_of

_SHOWN_FROM = (26, 5)
"""First release with a SuspendTime for each node, which `scontrol show node` shows (CHANGELOG/slurm-26.05.md)."""
_SHOWN = re.compile(r"^ *LastBusyTime=.* SuspendTime=(\S{1,20}) *$", re.MULTILINE)
_NEVER = ("infinite", "-1", "none")
_UNSET = "-2"
"""NO_VAL as `scontrol` prints it (src/api/node_info.c)."""


async def read_suspend_time(commands: Commands, node: NodeFacts, keys: Mapping[str, str]) -> str:
    """Return the SuspendTime in force for the node: its own, a partition's or the cluster's; "" before 26.05.

    The request reads all nodes of the cluster, so it is made only if power saving may switch this one off. Raises
    SlurmError.
    """
    release = release_of(keys.get("SLURM_VERSION", ""))
    if release is None or release < _SHOWN_FROM or _stays_on(node, keys):
        return ""
    undone = f"cannot read the SuspendTime of {node.name}"
    return shown_suspend_time(await commands.ask(undone, "scontrol", "--local", "--all", "show", "node", node.name))


def shown_suspend_time(text: str) -> str:
    """Parse `scontrol show node` of one node; "" if it shows no SuspendTime."""
    match = _SHOWN.search(text)
    return "" if match is None or match[1] == _UNSET else match[1]


def suspended_after(
    node: NodeFacts, keys: Mapping[str, str], partitions: Sequence[PartitionSettings], shown: str = ""
) -> str:
    """Return the setting that switches this node off when idle; empty if none does. `shown`: the controller's value for
    the node, which overrides all others.
    """
    if _stays_on(node, keys):
        return ""
    theirs = {
        f"SuspendTime of {partition.name}": partition.suspend_time
        for partition in partitions
        if partition.name in node.partitions
    }
    settings = (
        {f"SuspendTime in force for {node.name}": shown}
        if shown
        else {"SuspendTime": value_of(keys, "SuspendTime"), **theirs}
    )
    for setting, value in settings.items():
        if value and value.split()[0].lower() not in _NEVER:
            return f"{setting} {value}"
    return ""


def _stays_on(node: NodeFacts, keys: Mapping[str, str]) -> bool:
    exempt = set(value_of(keys, "SuspendExcParts").split(","))
    return (
        not value_of(keys, "SuspendProgram")
        or _excluded(node.name, value_of(keys, "SuspendExcNodes"))
        or not exempt.isdisjoint(node.partitions)
    )


def _excluded(name: str, hostlist: str) -> bool:
    """Return True if the node is certainly in the list. `n[1-4]:2` keeps any two of them on, so none is certain."""
    return bool(hostlist) and ":" not in hostlist and in_hostlist(name, hostlist)
