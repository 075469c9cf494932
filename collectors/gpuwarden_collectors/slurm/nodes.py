"""Reads nodes, with the least possible load for the controller.

One node is read with `sinfo -N -n`: two small requests, independent of the size of the cluster (measured with 8,000
nodes: 3.8 KB and 0.6 ms of the controller; `scontrol show node` loads all nodes, 2.6 MB). A partition can only be read
with all nodes of the cluster, in one large request, and is therefore read only before and after a drain.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuwarden_collectors.base import Clock, host_clock
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.slurm.errors import OddAnswer, Refused, SlurmError, UnknownNode
from gpuwarden_collectors.slurm.facts import JOBS_UNKNOWN, SUSPENDED, NodeFacts, PartitionFacts
from gpuwarden_collectors.slurm.jobs_facts import Job
from gpuwarden_collectors.slurm.jobs_text import SQUEUE_FORMAT, squeue
from gpuwarden_collectors.slurm.parse import NODE_FORMAT, ROW_FORMAT, shown_node, sinfo_nodes, sinfo_rows

if TYPE_CHECKING:  # the configuration checks names with this module, before asyncio is loaded
    from gpuwarden_collectors.slurm.client import Commands

_BOOT_TIME = re.compile(r"\bBootTime=(\d{1,12})\b", re.ASCII)
BOOTS_APART = 300.0
"""Seconds by which two reported boot times of one boot may differ."""
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,253}[A-Za-z0-9_])?", re.ASCII)


def is_node_name(name: str) -> bool:
    """True for the name of one node: in Slurm, brackets and commas mean several nodes, and ALL means every node."""
    return _NAME.fullmatch(name) is not None and name.upper() != "ALL"


def is_partition_name(name: str) -> bool:
    return re.fullmatch(r"[^\s,=\"'-][^\s,=\"']{0,253}", name) is not None and name.isprintable()


async def read_node(commands: Commands, name: str) -> NodeFacts:
    """Reads one node. Raises UnknownNode if Slurm has no such node, another SlurmError if it cannot be read."""
    undone = f"cannot read node {name}"
    text = await commands.ask(
        undone, "sinfo", "--local", "--all", "--noheader", "--Node", f"--nodes={name}", f"--Format={NODE_FORMAT}"
    )
    records = [node for node in sinfo_nodes(text) if node.name == name]
    if not records:
        return await _in_no_partition(commands, undone, name)
    return replace(records[0], partitions=tuple(part for node in records for part in node.partitions))


async def without_ended_jobs(commands: Commands, node: NodeFacts) -> NodeFacts:
    """Return the node, read again if its state names jobs and squeue lists none. Raises SlurmError.

    From 23.11 on the answer for one node includes the CPUs of ended jobs until any client queries all nodes (seen with
    24.11.5 and 25.11.7; src/slurmctld/proc_req.c, _slurm_rpc_dump_node_single): on an idle cluster a node stays mixed
    for hours. Therefore all nodes are queried. An empty squeue alone proves nothing, because PrivateData hides the jobs
    of other users.

    While such CPUs are included, mixed replaces any other base state, even down (seen with 22.05.8, 25.11.7 and
    26.05.3; src/api/node_info.c, _set_node_mixed).
    """
    if not node.says_jobs or await jobs_on(commands, node.name):
        return node
    undone = f"cannot have Slurm count the jobs of {node.name}"
    await commands.ask(undone, "sinfo", "--local", "--all", "--noheader", "--format=%D")
    return await read_node(commands, node.name)


async def with_suspended_jobs(commands: Commands, node: NodeFacts) -> NodeFacts:
    """Return the node with the flag SUSPENDED if a job is suspended there, JOBS_UNKNOWN if squeue does not answer.

    Such a job has its GPUs and memory still, and Slurm calls the node idle (seen with 22.05.8 and 25.11.7; src/slurmctld/job_mgr.c,
    _suspend_job_nodes).
    """
    listed = ("squeue", "--noheader", "--all", "--nodelist", node.name, "--states=S", "--format=%A")
    try:
        jobs = (await commands.ask(f"cannot read the suspended jobs of {node.name}", *listed)).split()
    except SlurmError:
        return replace(node, flags=node.flags | {JOBS_UNKNOWN})
    return replace(node, flags=node.flags | {SUSPENDED}) if jobs else node


async def runs_jobs(commands: Commands, name: str) -> bool:
    """Return True if squeue shows a running, suspended or stopped job on the node. Raises SlurmError."""
    listed = ("squeue", "--noheader", "--all", "--nodelist", name, "--states=R,S,ST", "--format=%A")
    return bool((await commands.ask(f"cannot read the jobs of {name}", *listed)).split())


async def jobs_on(commands: Commands, name: str) -> list[Job]:
    """Return the jobs that run or complete on the node, including hidden partitions. Raises SlurmError."""
    listed = ("squeue", "--noheader", "--all", "--nodelist", name, "--states=R,CG,CF,S,ST", "--format", SQUEUE_FORMAT)
    return squeue(await commands.ask(f"cannot read the jobs of {name}", *listed))


async def _in_no_partition(commands: Commands, undone: str, name: str) -> NodeFacts:
    """Reads a node for which `sinfo` returns nothing: it is in no partition, or does not exist."""
    node = shown_node(await commands.ask(undone, "scontrol", "--local", "show", "node", name))
    if node.name != name:
        raise OddAnswer(f"{undone}: scontrol answers with {node.name[:60]!r} instead")
    if node.partitions:
        raise OddAnswer(f"{undone}: sinfo does not list it, though it is in partition {node.partitions[0]}")
    return node


async def read_partitions(commands: Commands, names: Sequence[str]) -> list[PartitionFacts]:
    """Returns the partitions with their members, sorted by name; leaves out those that do not exist.

    Raises SlurmError.
    """
    wanted = ",".join(names)
    text = await commands.ask(
        f"cannot read partition {wanted}",
        "sinfo",
        "--local",
        "--noheader",
        "--Node",
        f"--partition={wanted}",
        f"--Format={ROW_FORMAT}",
    )
    members: defaultdict[str, list[NodeFacts]] = defaultdict(list)
    for node in sinfo_rows(text):
        members[node.partitions[0]].append(node)
    return [PartitionFacts(name=name, members=tuple(nodes)) for name, nodes in sorted(members.items())]


async def find_name(commands: Commands, hostname: str, *, clock: Clock = host_clock) -> str:
    """Returns Slurm's name of the host. Raises UnknownNode if it has none, Refused if it has several.

    Searches slurm.conf first. A dynamic node (`slurmd -Z`) is not in slurm.conf; its default name is the host name.
    """
    if name := await name_in_conf(commands, hostname):
        return name
    return await _dynamic_name(commands, _unfound(hostname), _hosts(hostname), clock())


async def name_in_conf(commands: Commands, hostname: str) -> str:
    """Returns this host's name in slurm.conf, or "". Raises Refused if it has several. Makes no request."""
    undone = _unfound(hostname)
    for host in _hosts(hostname):
        names = (await commands.ask(undone, "scontrol", "show", "aliases", host)).split()
        if len(names) > 1:
            raise Refused(
                f"{undone}: it has {len(names)}, {', '.join(names[:8])}; set slurm.node to the one that is meant"
            )
        if names and is_node_name(names[0]):
            return names[0]
    return ""


def _unfound(hostname: str) -> str:
    return f"cannot find the name of {hostname} in Slurm"


def _hosts(hostname: str) -> Sequence[str]:
    return tuple(dict.fromkeys((hostname, hostname.partition(".")[0])))


async def _dynamic_name(commands: Commands, undone: str, hosts: Sequence[str], now: Stamp) -> str:
    """Returns the name of this host's dynamic node; tries the short name first. Raises UnknownNode if there is none.

    `sinfo` queries one node, so a host that is not in Slurm causes little load. A name alone proves nothing: another
    machine may have it, in another domain or after a replacement. Therefore the node's boot time must match this
    machine's.
    """
    for name in filter(is_node_name, reversed(hosts)):
        listed = ("sinfo", "--local", "--all", "--noheader", "--Node", f"--nodes={name}", "--format=%n")
        if not set(hosts).intersection((await commands.ask(undone, *listed)).split()):
            continue
        text = await commands.ask(undone, "scontrol", "--local", "show", "node", name)
        match = _BOOT_TIME.search(text)
        if match is not None and abs(int(match.group(1)) - (now.wall - now.boottime)) <= BOOTS_APART:
            return name
        raise UnknownNode(
            f"{undone}: node {name} is of a machine that booted at another time; set slurm.node to the NodeName of this one"
        )
    raise UnknownNode(
        f"{undone}: neither slurm.conf nor the controller has a node with this NodeHostName; set slurm.node to its NodeName"
    )
