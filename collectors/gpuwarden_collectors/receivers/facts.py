"""What on this host can be signalled before the machine ends: jobs, containers and unmanaged processes, with the processes of each."""

from __future__ import annotations

from enum import StrEnum

from gpuwarden_collectors.dataclass import dataclass

SIGNALS = ("TERM", "USR1", "USR2", "HUP")
"""The only signals that are ever sent to a job, whatever it asks for."""
NOTHING = "NONE"
"""The declaration of a job that wants no signal."""


class Role(StrEnum):
    """What a process is to its job. Only a rank is ever signalled."""

    RANK = "rank"
    HELPER = "helper"  # started by a rank: it loads data, or writes a checkpoint
    LAUNCHER = "launcher"  # starts ranks, and kills them soon after it is signalled itself
    SHELL = "shell"
    SERVICE = "service"  # of the host or of the container, or of CUDA: MPS, DCGM, sshd, slurmstepd


class Kind(StrEnum):
    SLURM = "slurm"
    CONTAINER = "container"
    PROCESS = "process"  # it holds a GPU, and belongs to neither of the others


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    """A process of a job. `pid` and `started` identify it for good."""

    pid: int
    """Process number."""
    started: int
    """Ticks since boot (field 22 of proc(5) stat)."""
    uid: int
    """Its real user."""
    name: str
    """Its name, as the kernel has it."""
    role: Role
    """What it is to its job."""
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
    """True if it sleeps where no signal reaches it, and its environment and command line were never read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalJob:
    """What runs on this host under one name."""

    kind: Kind
    """What holds its processes together."""
    id: str
    """Slurm's number of the job, dstack's or the runtime's name of the container, or a process number."""
    uid: int | None
    """The job's user; of a container, its first rank's. None while its processes are several users' and Slurm does not say whose it is."""
    name: str = ""
    """Its name for people: GPUWARDEN_JOB, Slurm's or the container's name."""
    folder: str = ""
    """Name under which its ranks find their folder of acknowledgements, which they choose; empty if they have none."""
    declared: str = ""
    """As in Receiver, from the container's label."""
    elsewhere: bool = False
    """True if by its ranks' environment it has more ranks or nodes than are here."""
    processes: tuple[Receiver, ...] = ()
    """Its processes."""
