"""The steps of a plan: each defines which event is written, and what is then done. Pure."""

from __future__ import annotations

from gpuwarden.features.evacuation.policy.delivery import Delivery
from gpuwarden.features.evacuation.policy.model import key_of
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.receivers.facts import LocalJob, Receiver
from gpuwarden_collectors.slurm.departing_facts import SlurmJob


@dataclass(frozen=True, slots=True)
class SignalJob:
    """Write `events.signalling`, then send; with the ways watch and none there is nothing to send. A job that is
    signalled as a whole is marked first, and `events.marking` written before that.

    `remaining`: the job's processes that were signalled before it came into this evacuation. `again`: it is not known
    whether the receivers got an earlier signal.
    """

    job: LocalJob
    delivery: Delivery
    slurm: SlurmJob | None
    remaining: tuple[Receiver, ...] = ()
    again: bool = False

    @property
    def key(self) -> str:
        return key_of(self.job)


@dataclass(frozen=True, slots=True)
class Requeue:
    """Requeue a job. It is expected to be as in `slurm`; otherwise somebody else has changed it since."""

    key: str
    slurm: SlurmJob


@dataclass(frozen=True, slots=True)
class NameNot:
    """Report once that the job is not requeued. `permanent` False: it is requeued if the end moves away."""

    key: str
    text: str
    permanent: bool


@dataclass(frozen=True, slots=True)
class CheckSteps:
    """Read the steps of this job; where none of them runs any more, write `events.saved` by BY_STEP, for all ranks."""

    key: str
    slurm: SlurmJob


@dataclass(frozen=True, slots=True)
class SetFinalState:
    what: str


@dataclass(frozen=True, slots=True)
class Approve:
    """Write `events.approving`, then approve the end that its source calls `id`."""

    id: str


Step = SignalJob | Requeue | NameNot | CheckSteps | SetFinalState | Approve


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps that are due now. `again`: when to scan again if nothing happens before, seconds of CLOCK_BOOTTIME.

    `ask_controller`: query the controller for that scan, since what is due then cannot be taken back. `waits`: a job is
    not signalled yet, since the controller may still answer in time.
    """

    steps: tuple[Step, ...]
    again: float
    ask_controller: bool = False
    waits: bool = False
