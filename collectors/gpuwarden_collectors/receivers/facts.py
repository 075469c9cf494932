"""Facts about what can be signalled before the machine ends: jobs, containers, unmanaged processes."""

from __future__ import annotations

from enum import StrEnum

from gpuwarden_collectors.dataclass import dataclass

SIGNALS = ("TERM", "USR1", "USR2", "HUP")
"""The only signals that are ever sent to a job."""
NOTHING = "NONE"
"""Declared by a job that must not be signalled."""


class Role(StrEnum):
    """The role of a process in its job. Only ranks are signalled."""

    RANK = "rank"
    HELPER = "helper"  # started by a rank: it loads data, or writes a checkpoint
    LAUNCHER = "launcher"  # starts ranks, and kills them soon after it is signalled itself
    SHELL = "shell"
    SERVICE = "service"  # a service of the host, the container or CUDA: MPS, DCGM, sshd, slurmstepd


class Kind(StrEnum):
    SLURM = "slurm"
    CONTAINER = "container"
    PROCESS = "process"  # it holds a GPU, and belongs to neither of the others


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    """A process of a job. `pid` and `started` identify it uniquely."""

    pid: int
    """Process number."""
    started: int
    """Ticks since boot (field 22 of proc(5) stat)."""
    uid: int
    """Its real user."""
    name: str
    """Its name, as the kernel has it."""
    role: Role
    """Its role in the job."""
    catches: frozenset[str] = frozenset()
    """Those of SIGNALS for which it has a handler now (SigCgt) that does more than to end it."""
    declared: str = ""
    """GPUWARDEN_SIGNAL in its environment: one of SIGNALS, NOTHING, or empty."""
    step: str = ""
    """Slurm's step that it runs in: a number, batch, interactive or extern; empty outside of Slurm."""
    step_nodes: str = ""
    """The nodes of that step as Slurm writes them, by its environment; empty if not known."""
    leader: bool = False
    """True if slurmstepd itself started it."""
    rank: int | None = None
    """Its number in the job; None if not known."""
    gpu: bool = False
    """True if it holds a GPU."""
    stuck: bool = False
    """True if it is in uninterruptible sleep, and its environment and command line were never read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalJob:
    """The processes of one job, container or tree on this host."""

    kind: Kind
    """How its processes were grouped."""
    id: str
    """Slurm's number of the job, dstack's or the runtime's name of the container, or a process number."""
    uid: int | None
    """The job's user; for a container, its first rank's. None if it has several and Slurm names none."""
    name: str = ""
    """Its name for people: GPUWARDEN_JOB, Slurm's or the container's name."""
    folder: str = ""
    """Name of its folder of acknowledgements, chosen by its ranks; empty if they have none."""
    declared: str = ""
    """As in Receiver, from the container's label."""
    elsewhere: bool = False
    """True if its ranks' environment shows more ranks or nodes than this host has."""
    processes: tuple[Receiver, ...] = ()
