"""Facts about the jobs on this node: which there are, which GPUs they were given, which processes are theirs."""

from __future__ import annotations

from typing import ClassVar

from gpuwarden_collectors.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job that is or was on this node."""

    id: int
    """Number of the job."""
    uid: int | None = None
    """User of the job; None where no source gives it."""
    sluid: str = ""
    """What Slurm calls this run of the job, and from 26.05 on its folder of control groups; empty where no source gives it."""
    user: str = ""
    """Name of the user; empty where no source gives it."""
    job_name: str = ""
    """Name of the job; empty where no source gives it."""
    gpus: tuple[int, ...] = ()
    """Slurm's own numbers (IDX), counted on the node's GPU list."""
    started: float | None = None
    """Seconds of CLOCK_BOOTTIME; None if not known."""
    ended: float | None = None
    """Seconds of CLOCK_BOOTTIME; None while no source reports its end here."""
    watched: bool = True
    """False: its processes do not show that it is a batch job, or its user wants no judgement of how it gets on."""
    nodes: int | None = None
    """Number of its nodes; None where no source gives it."""
    batch: bool = False
    """This is its first node, which runs the batch script; by the prolog's note."""
    exit_code: int | None = None
    """Exit code of the batch script; None: not known, or the controller ended it. 0 is the controller's word: in an epilog a job that was
    cancelled has 0 too."""
    signal: int | None = None
    """The signal that ended the batch script; None: not known, or none did. Of what the controller ended it is the controller's own."""
    state: str = ""
    """How it ended, in the controller's word, one of `jobs_text.ENDING`; `REQUEUED`: it waits or runs again; `REQUEUE_HOLD`: it waits until
    somebody releases it. Empty until that was asked, which only the first node does, for some jobs an hour (`jobs_end.py`). For want of memory
    an epilog says it, too."""
    step_exit_code: int | None = None
    """The highest exit code of its steps; None: not known."""
    step_signal: int | None = None
    """The signal of that step, 125 if it was for want of memory; None: not known, or none."""
    failed_node: str = ""
    """Of NODE_FAIL the node that failed, where the controller names it (24.11)."""
    failed_here: bool = False
    """That node is this one."""
    cancelled_by: int | None = None
    """Number of the user who cancelled it; None: not cancelled, or no accounting names the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProcess:
    """A process that has a GPU open."""

    pid: int
    """Process number."""
    uid: int
    """Its user."""
    job: int | None = None
    """Number of the job that it belongs to; None if no source knows one."""
    known_from: str = ""
    """cgroup, listpids, environ or user, in falling order of trust."""
    ended: float | None = None
    """When its job ended here, seconds of CLOCK_BOOTTIME; None while it runs."""
    rank: int | None = None
    """Its number in the job; None if it declares none."""
    cpu_seconds: float | None = None
    """CPU time of all its threads, as of `JobsFacts.cpu_at`; None if it began later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsFacts:
    """One pass over the jobs of this node."""

    collector: ClassVar[str] = "jobs"
    jobs: tuple[Job, ...] = ()
    """The jobs that are or were here."""
    processes: tuple[JobProcess, ...] = ()
    """Processes that have a GPU open."""
    cpu_at: float | None = None
    """When CPU times were read, about once a minute, seconds of CLOCK_BOOTTIME."""
    minors: tuple[int, ...] = ()
    """Minor numbers of the device files in Slurm's GPU list, in its order; empty where it is sorted by PCI address."""
