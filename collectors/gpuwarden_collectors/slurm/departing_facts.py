"""What the controller says of a job whose node is about to go."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """`state` is Slurm's, in lower case. `nodes`: its host list as written, `node_count` how many these are.

    `requeue`: it may be requeued. `started`: when this run of it began, Unix time by the controller's clock. `restarts`: how
    often it was requeued. `comment` is the user's, `admin_comment` the administrators', None where it was not asked for.
    `called`: the only name by which Slurm's commands mean this job and no other: 12, 7_3 of an array, 9+1 of a
    heterogeneous job; the plain number of an array's last task means them all. `pinned`: the nodes it must have, as written.
    """

    id: int
    uid: int
    state: str
    nodes: str
    node_count: int
    partition: str = ""
    batch: bool = False
    batch_host: str = ""
    requeue: bool = False
    restarts: int = 0
    started: float = 0.0
    comment: str = ""
    admin_comment: str | None = None
    called: str = ""
    name: str = ""
    pinned: str = ""

    @property
    def part(self) -> bool:
        """Of a heterogeneous job, which has other parts."""
        return "+" in self.called

    @property
    def several(self) -> bool:
        """It has more nodes than one, and ends on all of them at once."""
        return self.node_count > 1 or self.part


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedPid:
    """A process of a job's step, as slurmd lists it. `step`: a number, batch, extern or interactive; 0+1 is the second part of
    a step that was started in parts (`srun a : b`), which no signal of Slurm's reaches by a name.

    `local` and `rank`: its number on this node and in the step, None for what no slurmstepd started itself (no task leader).
    """

    job: int
    step: str
    local: int | None = None
    rank: int | None = None
