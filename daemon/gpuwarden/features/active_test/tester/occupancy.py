"""Finds from the schedulers who else may use the GPUs of this node, and so how much memory a test may take.

A test takes all memory only if nobody else can be given a GPU meanwhile. What cannot be read counts as occupied.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from pathlib import Path

from gpuwarden.base.threads import detached
from gpuwarden.features.active_test.tester import pods
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.process_stat import process_stat
from gpuwarden_collectors.slurm.client import SlurmClient
from gpuwarden_collectors.slurm.departing_text import listed_pids
from gpuwarden_collectors.slurm.errors import SlurmError
from gpuwarden_collectors.slurm.jobs_cgroup import job_cgroup_of
from gpuwarden_collectors.slurm.jobs_text import gpus_of, is_exclusive
from gpuwarden_collectors.slurm.nodes import jobs_on, read_node, without_ended_jobs

JOB_VARIABLE = "SLURM_JOB_ID"
POD_VARIABLE = "POD_UID"
"""Variable from the manifest of the pod that a test runs in (kubernetes/active-test.yaml)."""
PODS_WITHIN = 5.0
"""Seconds."""
_SHOWN = 4
_ANCESTORS_MOST = 64


class Memory(StrEnum):
    """How much of the free memory a test may take: the answer to a worker."""

    ALL = "all"
    PART = "part"
    """2 GiB stay free."""
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The memory that a test may take. `why` is for people, with what to do unless it is ALL."""

    memory: Memory
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The sources to ask. `excluded_by`: what has excluded this node according to the daemon; may block a moment."""

    slurm: SlurmClient | None
    excluded_by: Callable[[], Sequence[str]]
    ended_job: Callable[[], Occupancy] | None = None
    """Returns the occupancy of a job's own GPUs, in its epilog. If set, no other source is queried."""
    alone_by_order: bool = False
    """The operator states that nobody uses the node. Only for hosts without a scheduler."""
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    proc: Path = Path("/proc")
    kubelet: Path
    now: Callable[[], float]
    """Unix time."""

    @property
    def has_scheduler(self) -> bool:
        return self.slurm is not None or pods.is_kubernetes(self.kubelet)


async def occupancy(asked: Asked, gpus: int) -> Occupancy:
    """Find how much memory a test may take.

    `gpus`: number of GPUs on this node. Raises nothing; each Slurm command has its own deadline.
    """
    if asked.ended_job is not None:
        return await detached("notes of jobs", asked.ended_job)
    if (held := await _pods(asked, gpus)) is not None:
        return held
    if asked.slurm is not None:
        return await _slurm(asked, asked.slurm, gpus)
    if asked.alone_by_order:
        return Occupancy(Memory.ALL, "whoever started the test states that nobody uses this node")
    if pods.is_kubernetes(asked.kubelet):
        return await _cluster(asked)
    to_do = "gpuwarden exclude, wait for the end of what runs here, and add --i-know-nobody-is-here"
    return Occupancy(Memory.PART, f"work may start at any moment, and there is no scheduler to ask: {to_do}")


class SharedOccupancy:
    """One query for all workers that wait for it.

    An answer counts only if its query began after the request: otherwise a job that Slurm started in between would lose
    memory.
    """

    def __init__(self, asked: Asked, gpus: int) -> None:
        self._asked = asked
        self._gpus = gpus
        self._answer: Occupancy | None = None
        self._begun = float("-inf")
        self._turn = asyncio.Lock()

    async def answer(self) -> Occupancy:
        """Return an occupancy whose query began after this call."""
        called = time.monotonic()
        async with self._turn:
            if self._answer is None or self._begun < called:
                self._begun = time.monotonic()
                self._answer = await occupancy(self._asked, self._gpus)
            return self._answer


async def _pods(asked: Asked, gpus: int) -> Occupancy | None:
    if not pods.is_kubernetes(asked.kubelet):
        return None
    own = asked.environment.get(POD_VARIABLE, "")
    reading = detached("pods", lambda: pods.pods_with_gpus(asked.now(), asked.kubelet, asked.proc, own))
    await asyncio.wait((reading,), timeout=PODS_WITHIN)
    if not reading.done():
        return Occupancy(
            Memory.NONE, f"{asked.kubelet} has not answered within {PODS_WITHIN:g} s: is its file system frozen?"
        )
    try:
        gpus_by_pod = reading.result()
    except (pods.PodsUnread, OSError) as error:
        return Occupancy(Memory.NONE, str(error))
    if not gpus_by_pod:
        return None
    if own in gpus_by_pod:
        return _own_pod(gpus_by_pod, own, gpus)
    return Occupancy(
        Memory.NONE, f"pods have GPUs here ({_some(tuple(gpus_by_pod))}): kubectl drain the node, or wait for their end"
    )


def _own_pod(gpus_by_pod: Mapping[str, int], own: str, gpus: int) -> Occupancy:
    """Return the occupancy of the pod that this process is in. If it has all GPUs, nobody else can be given one."""
    if len(gpus_by_pod) == 1 and gpus_by_pod[own] >= gpus:
        return Occupancy(Memory.ALL, f"this pod has all {gpus} GPUs of the node")
    others = (
        f", and other pods have some ({_some([pod for pod in gpus_by_pod if pod != own])})"
        if len(gpus_by_pod) > 1
        else ""
    )
    return Occupancy(
        Memory.NONE, f"this pod has {gpus_by_pod[own]} of {gpus} whole GPUs{others}: give it nvidia.com/gpu: {gpus}"
    )


async def _cluster(asked: Asked) -> Occupancy:
    """Return the occupancy while no pod has a GPU. Only an exclusion in the cluster itself keeps pods away."""
    holders = await detached("exclusions", asked.excluded_by)
    if by := [holder for holder in holders if holder.startswith("kubernetes ")]:
        return Occupancy(Memory.ALL, f"the node is excluded by {', '.join(by)}, and no pod has a GPU")
    return Occupancy(Memory.PART, "a pod may be started at any moment: gpuwarden exclude")


async def _slurm(asked: Asked, client: SlurmClient, gpus: int) -> Occupancy:
    try:
        name = await client.routine.node_name()
        own = asked.environment.get(JOB_VARIABLE, "")
        if own.isascii() and own.isdecimal() and await _is_inside(asked, client, int(own), name):
            return await _own_job(client, int(own), name, gpus)
        return await _node(client, name)
    except SlurmError as error:
        return Occupancy(Memory.NONE, f"Slurm does not list the jobs here: {error}")


async def _node(client: SlurmClient, name: str) -> Occupancy:
    node = await without_ended_jobs(client.routine, await read_node(client.routine, name))
    if jobs := await jobs_on(client.routine, name):  # read after the node's state: a drained node starts none
        shown = _some([f"{job.id} of {job.user}" for job in jobs])
        return Occupancy(Memory.NONE, f"Slurm has jobs here ({shown}): drain the node and wait for their end")
    if not node.is_empty:
        return Occupancy(
            Memory.NONE, f"Slurm reports that the node is {node.state}: drain it and wait until it is drained"
        )
    if "drain" in node.flags:
        return Occupancy(Memory.ALL, f"the node is drained in Slurm ({node.reason[:80]}), and has no job")
    to_do = "gpuwarden exclude, or run the test in an exclusive job with all GPUs"
    return Occupancy(Memory.PART, f"Slurm may start a job on {name} at any moment: {to_do}")


async def _own_job(client: SlurmClient, job: int, name: str, gpus: int) -> Occupancy:
    """Return the occupancy of the job that this process belongs to."""
    text = await client.routine.ask(f"cannot read job {job}", "scontrol", "show", "job", "-d", str(job))
    words = dict(word.split("=", 1) for word in text.split() if "=" in word)
    if words.get("JobState") != "RUNNING":
        return Occupancy(Memory.NONE, f"job {job} is {words.get('JobState', 'gone')}: it is about to end")
    allocated, exclusive = len(gpus_of(text, name) or ()), is_exclusive(text)
    if exclusive and allocated >= gpus:
        return Occupancy(Memory.ALL, f"job {job} has this node exclusively, with all {gpus} GPUs")
    has = f"{allocated} of {gpus} GPUs" + ("" if exclusive else ", not exclusively")
    return Occupancy(Memory.NONE, f"job {job} has {has}: add --exclusive and --gres=gpu:{gpus} to it")


async def _is_inside(asked: Asked, client: SlurmClient, job: int, name: str) -> bool:
    """Return True if this process is in the job, by cgroup or slurmd: the variable alone may be left over."""
    group = job_cgroup_of(asked.proc, os.getpid())
    if group.job is not None:
        return group.job == job
    try:
        pids = listed_pids(await client.routine.ask(f"cannot read job {job}", "scontrol", "listpids", str(job), name))
    except SlurmError:  # the job has no step here
        return False
    return any(pid in pids and pids[pid].job == job for pid in _ancestors(asked.proc, os.getpid()))


def _ancestors(proc: Path, pid: int) -> Sequence[int]:
    """Return the process and those that it descends from, nearest first."""
    ancestors: list[int] = []
    while pid > 1 and len(ancestors) < _ANCESTORS_MOST:
        ancestors.append(pid)
        stat = process_stat(proc, pid)
        pid = 0 if stat is None else stat.parent
    return ancestors


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
