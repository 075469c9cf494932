"""What on this host can be signalled before the machine ends: jobs, containers and unmanaged processes, with the processes of each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

SIGNALS = ("TERM", "USR1", "USR2", "HUP")
"""The only signals that are ever sent to a job, whatever it asks for."""
NOTHING = "NONE"
"""What a job declares that wants no signal."""


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
    """A process of a job. `pid` and `started` (ticks since boot, field 22 of proc(5) stat) name it for good. `uid`: its real one.

    `catches`: those of SIGNALS for which it has a handler now (SigCgt). `declared`: what its environment says in
    GPUWARDEN_SIGNAL: one of SIGNALS, NOTHING, or empty. `step` and `leader` are Slurm's: the step it runs in (a number,
    batch, interactive, extern), and whether slurmstepd itself started it. `rank`: its number in the job, if it is known.
    `directory`: where it says that it leaves its checkpoints. `stuck`: it sleeps where no signal reaches it, and what
    it says was not known before: nothing of its environment and command line was read.
    """

    pid: int
    started: int
    uid: int
    name: str
    role: Role
    catches: frozenset[str] = frozenset()
    declared: str = ""
    step: str = ""
    leader: bool = False
    rank: int | None = None
    gpu: bool = False
    directory: str = ""
    stuck: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalJob:
    """What runs on this host under one name. `id`: Slurm's number of the job, dstack's or the runtime's name of the container, or
    a process number.

    `uid`: the job's user; of a container, its first rank's. `name`: what people call it (GPUWARDEN_JOB, Slurm's or the container's
    name). `folder`: under which name its ranks look for their folder of acknowledgements, empty if they do not; they choose it.
    `declared` as in Receiver, from the container's label. `elsewhere`: its ranks' environment says that it has more of them, or more
    nodes, than are here.
    """

    kind: Kind
    id: str
    uid: int
    name: str = ""
    folder: str = ""
    declared: str = ""
    elsewhere: bool = False
    processes: tuple[Receiver, ...] = ()
