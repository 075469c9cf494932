"""What the controller says of a job whose node is about to go."""

from __future__ import annotations

from enum import StrEnum

from gpuwarden_collectors.dataclass import dataclass


class CommandOutcome(StrEnum):
    """What the record of a command says (`command_record`)."""

    RUNNING = "running"
    NOT_STARTED = "not_started"
    SUCCEEDED = "succeeded"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """A job on a node that is about to end."""

    id: int
    """Number of the job."""
    uid: int
    """Its user."""
    state: str
    """Slurm's state, in lower case."""
    nodes: str
    """Its host list as Slurm writes it."""
    node_count: int
    """How many nodes these are."""
    partition: str = ""
    """Its partition."""
    batch: bool = False
    """True if it has a batch script."""
    batch_host: str = ""
    """The node that runs the batch script."""
    requeue: bool = False
    """True if it may be requeued."""
    restarts: int = 0
    """How often it was requeued."""
    started: float = 0.0
    """When this run of it began, Unix time by the controller's clock."""
    comment: str = ""
    """The user's comment."""
    admin_comment: str | None = None
    """The administrators' comment; None where it was not requested."""
    called: str = ""
    """The only name by which Slurm's commands mean this job and no other: 12, 7_3 of an array, 9+1 of a heterogeneous job; the plain number of an array's last task means them all."""
    name: str = ""
    """Name of the job."""
    pinned: str = ""
    """The nodes that it must have, as written."""

    @property
    def part(self) -> bool:
        """True if the job is one component of a heterogeneous job."""
        return "+" in self.called

    @property
    def in_steps(self) -> str:
        """Its name in those of its steps: a plain number for a part of a heterogeneous job, JOB_TASK for an array's."""
        return self.called if "_" in self.called else str(self.id)

    @property
    def several(self) -> bool:
        """True if the job has more than one node and ends on all of them at once."""
        return self.node_count > 1 or self.part


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedPid:
    """A process of a job's step, as slurmd lists it."""

    job: int
    """Number of the job."""
    step: str
    """A number, batch, extern or interactive; 0+1 is the second part of a step started in parts (`srun a : b`), which no signal of Slurm's reaches by a name."""
    local: int | None = None
    """Its number on this node; None for what no slurmstepd started itself (no task leader)."""
    rank: int | None = None
    """Its number in the step; None as `local`."""
