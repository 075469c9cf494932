"""Facts about a job whose node is about to end, from the controller."""

from __future__ import annotations

from enum import StrEnum

from gpuwarden_collectors.dataclass import dataclass


class CommandOutcome(StrEnum):
    """The outcome of a command, from its record (`command_record`)."""

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
    """Its nodes, as a host list."""
    node_count: int
    """Number of its nodes."""
    partition: str = ""
    batch: bool = False
    """True if it has a batch script."""
    requeue: bool = False
    """True if it may be requeued."""
    restarts: int = 0
    """Number of requeues."""
    started: float = 0.0
    """Start of its current run, Unix time by the controller's clock."""
    comment: str = ""
    """The user's comment."""
    admin_comment: str | None = None
    """The administrators' comment; None where it was not requested."""
    called: str = ""
    """Its unambiguous name in Slurm's commands: 12, 7_3 (array), 9+1 (heterogeneous). A number may mean an array."""
    name: str = ""
    pinned: str = ""
    """The nodes that it must have, as written."""

    @property
    def part(self) -> bool:
        """True if the job is one component of a heterogeneous job."""
        return "+" in self.called

    @property
    def in_steps(self) -> str:
        """Its name in names of its steps: a plain number for a heterogeneous component, JOB_TASK for an array task."""
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
    """A number, batch, extern or interactive. 0+1 is the second part of `srun a : b`; Slurm cannot signal it by
    name.
    """
    local: int | None = None
    """Its number on this node; None for a process that is not a task leader (not started by slurmstepd)."""
    rank: int | None = None
    """Its number in the step; None in the same case."""
