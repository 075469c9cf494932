"""Facts about the jobs on this node, their GPUs and their processes."""

from __future__ import annotations

from typing import ClassVar

from gpuwarden_collectors.dataclass import dataclass

PROLOG_FAILED = 54
"""In place of a signal, Slurm's error for a job whose prolog failed (slurm_errno.h, ESLURMD_PROLOG_FAILED, cut to 7 bits), from
24.11 on (seen with 24.11.5 and 25.11.7). gpuwarden's prolog notes whom it refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job that is or was on this node."""

    id: int
    """Number of the job."""
    uid: int | None = None
    """Uid of the job's user; None if no source has it."""
    sluid: str = ""
    """Slurm's id of this run of the job, from 26.05 on the name of its cgroup folder; empty if no source has it."""
    user: str = ""
    """Name of the user; empty where no source gives it."""
    job_name: str = ""
    """Name of the job; empty where no source gives it."""
    gpus: tuple[int, ...] = ()
    """Slurm's own numbers (IDX), counted on the node's GPU list."""
    started: float | None = None
    """Start, seconds of CLOCK_BOOTTIME; None if unknown."""
    ended: float | None = None
    """End on this node, seconds of CLOCK_BOOTTIME; None until a source reports it."""
    watched: bool = True
    """False: its processes do not show that it is a batch job, or its user opted out of `job_stalled`."""
    nodes: int | None = None
    """Number of its nodes, at least, if it is a part of a heterogeneous job; None where no source gives it."""
    batch: bool = False
    """True if this node is its first, which runs the batch script; from the prolog's note."""
    exit_code: int | None = None
    """Exit code of the batch script; None: unknown, or the controller ended the job. 0 only comes from the controller:
    in an epilog a cancelled job has 0, too."""
    signal: int | None = None
    """Signal that ended the batch script, or PROLOG_FAILED; None: unknown, or none. For a job that the controller ended, its signal."""
    state: str = ""
    """Slurm's final state, one of `jobs_text.ENDING`; `REQUEUED`: it is pending or runs again; `REQUEUE_HOLD`: it is
    held. Empty until the first node has queried it, for a limited number of jobs an hour (`jobs_end.py`). An epilog
    reports OUT_OF_MEMORY, too."""
    step_exit_code: int | None = None
    """Highest exit code of its steps; None if unknown."""
    step_signal: int | None = None
    """Signal of that step, 125 for an OOM kill; None: unknown, or none."""
    failed_node: str = ""
    """The failed node of NODE_FAIL, if the controller names it (24.11)."""
    failed_here: bool = False
    """True if that node is this one."""
    cancelled_by: int | None = None
    """Uid of the user who cancelled it; None: not cancelled, or unknown to accounting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProcess:
    """A process that has a GPU open."""

    pid: int
    """Process number."""
    uid: int
    """Its user."""
    job: int | None = None
    """Number of its job; None if no source shows one."""
    known_from: str = ""
    """cgroup, listpids, environ or user, in falling order of trust."""
    ended: float | None = None
    """When its job ended on this node, seconds of CLOCK_BOOTTIME; None while it runs."""
    rank: int | None = None
    """Its number in the job; None if it declares none."""
    cpu_seconds: float | None = None
    """CPU time of all its threads at `JobsFacts.cpu_at`; None if it started later."""


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
