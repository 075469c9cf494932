"""Facts about the jobs on this node: which there are, which GPUs they were given, which processes are theirs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job that is or was on this node. `gpus` are Slurm's own numbers (IDX), counted on the node's GPU list.

    `started` and `ended` are CLOCK_BOOTTIME; `ended` is None while no source reports its end here. `uid` is None,
    and `user` and `job_name` are empty, where no source gives them.
    """

    id: int
    uid: int | None = None
    user: str = ""
    job_name: str = ""
    gpus: tuple[int, ...] = ()
    started: float | None = None
    ended: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProcess:
    """A process that has a GPU open, and the job it belongs to: None if no source knows one.

    `known_from`: cgroup, listpids, environ or user, in falling order of trust. `ended`: when its job ended here.
    """

    pid: int
    uid: int
    job: int | None = None
    known_from: str = ""
    ended: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsFacts:
    """`minors` are the device files of Slurm's GPU list in its order, by minor number; empty where it is sorted by PCI address."""

    jobs: tuple[Job, ...] = ()
    processes: tuple[JobProcess, ...] = ()
    minors: tuple[int, ...] = ()
