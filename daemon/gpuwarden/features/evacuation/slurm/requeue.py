"""Requeues a job from this node exactly once, even if others requeue it meanwhile.

The count of its restarts decides: a job that was requeued since the end was announced is not requeued again, whether by
another node of the job, by the job itself or by a person. The node must be excluded first, or it gets the job back.
`Incomplete` leaves finished jobs alone, which a plain requeue runs again.

Slurm makes a requeued job wait for cred_expire + 1 s, by default 121 s, counted from its last process. `StartTime=now`
removes that, but only once the job is pending and no longer completing, which would set it again. It must not come at
once: a node that was ordered to kill a job accepts no credential for it that was made in the same second, and kills it
once more ("Job credential revoked").
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import StrEnum

from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.slurm.client import Commands
from gpuwarden_collectors.slurm.departing import read_job
from gpuwarden_collectors.slurm.departing_facts import SlurmJob
from gpuwarden_collectors.slurm.errors import CalledOff, Refused, SlurmError
from gpuwarden_collectors.slurm.hostlist import in_hostlist
from gpuwarden_collectors.slurm.nodes import read_node
from gpuwarden_collectors.slurm.settings import read_version, release_of

SETTLES_AFTER = 1.5
"""Seconds from the requeue to `StartTime=now`: the times that Slurm compares (slurm_cred.c) are whole seconds of the controller's."""
_PATIENCE = 3.0  # seconds for its processes to end; KillWait, 30 s by default, may last longer than there is time
_POLL = 0.1
_PENDING, _COMPLETING = "pending", "completing"
_DONE_BY_OTHERS = ("pending execution", "Job has already finished", "Invalid job id")
_NEVER = (
    ("Only batch jobs", "only batch jobs can be requeued"),
    ("presently disabled", "it was submitted with --no-requeue, or JobRequeue=0 is the default"),
)
_CANCELS_PARTS_FROM = (25, 11)
"""Release from which a requeue cancels a heterogeneous job whose steps run: its srun kills the steps, and slurmctld takes that for a
cancellation ("job_signal: 9 of requeuing JobId"; seen with 25.11.7 and 26.05.3, not with 22.05.8, 24.05 and 25.05)."""


class Requeueing(StrEnum):
    REQUEUED = "requeued"  # it waits for other nodes, or runs there already, no matter by whom
    WAITS = "waits"  # it is requeued, and its processes are still ending: call again to bring its start forward
    ENDED = "ended"  # nothing to do: it has ended, or is ending
    ELSEWHERE = "elsewhere"  # nothing to do: this node is not one of its nodes
    NOT_YET = "not_yet"  # this node could still get it back: first exclude it
    CALLED_OFF = "called_off"  # no longer wanted: nothing was written
    REFUSED = "refused"  # it cannot be requeued: `text` is the reason


@dataclass(frozen=True, slots=True, kw_only=True)
class RequeueOutcome:
    """The result of requeueing a job."""

    result: Requeueing
    text: str
    """For people."""


async def requeue(
    commands: Commands,
    job: SlurmJob,
    node: str,
    *,
    settles: float = SETTLES_AFTER,
    still: Callable[[], bool] | None = None,
) -> RequeueOutcome:
    """Requeue `job`, as it was when the end was noticed, from `node`, which is this one. Takes 1.6 to 3.2 s on a quiet
    controller.

    Safe to repeat with the same `job`; with `settles` 0 once SETTLES_AFTER has passed since the requeue. `still`:
    called right before the requeue, and not later; returns whether it is still wanted. Raises SlurmError; a command
    that timed out may still be done.
    """
    current = await read_job(commands, job)
    if current is None or current.restarts == job.restarts:
        if (settled := await _left_alone(commands, current, node)) is not None:
            return settled
        if (left := await _write(commands, job, still)) is not None:
            return left
        current = await read_job(commands, job)
    if current is None:
        return RequeueOutcome(result=Requeueing.ENDED, text="it has ended")
    if current.restarts == job.restarts:
        if current.state == _COMPLETING:
            return RequeueOutcome(result=Requeueing.ENDED, text="it is ending by itself")
        raise SlurmError(
            f"cannot requeue job {job.called}: Slurm accepted it, and it is {current.state} as before; it is tried again"
        )
    return await _bring_forward(commands, job, current, settles)


async def _left_alone(commands: Commands, current: SlurmJob | None, node: str) -> RequeueOutcome | None:
    """Return the outcome if the job must not be requeued, or not yet; None if it is to be. Raises SlurmError."""
    if (settled := _nothing_to_do(current, node)) is not None:
        return settled
    if not (await read_node(commands, node)).is_out:
        return RequeueOutcome(result=Requeueing.NOT_YET, text=f"{node} could get it back: it is not excluded yet")
    if current is not None and current.part and (why := await _would_be_cancelled(commands)):
        return RequeueOutcome(result=Requeueing.REFUSED, text=why)
    return None


def _nothing_to_do(current: SlurmJob | None, node: str) -> RequeueOutcome | None:
    """Return the outcome if nothing is to be done, None if the job is to be requeued."""
    if current is None or current.state == _COMPLETING:
        return RequeueOutcome(
            result=Requeueing.ENDED, text="it has ended" if current is None else "it is ending by itself"
        )
    if not in_hostlist(node, current.nodes):
        return RequeueOutcome(
            result=Requeueing.ELSEWHERE, text=f"it is {current.state}, and {node} is not one of its nodes"
        )
    if not current.batch:
        return RequeueOutcome(result=Requeueing.REFUSED, text=_NEVER[0][1])
    if not current.requeue:
        return RequeueOutcome(result=Requeueing.REFUSED, text=_NEVER[1][1])
    if current.pinned and in_hostlist(node, current.pinned):
        return RequeueOutcome(
            result=Requeueing.REFUSED, text=f"it requires {current.pinned[:60]}, and could run nowhere else"
        )
    return None


async def _would_be_cancelled(commands: Commands) -> str:
    """Return why a requeue would end a heterogeneous job for good; "" if it would not or that is unknown."""
    version = await read_version(commands)
    if (release_of(version) or (0, 0)) < _CANCELS_PARTS_FROM:
        return ""
    return f"Slurm {version} cancels a heterogeneous job that is requeued while steps of it run"


async def _write(commands: Commands, job: SlurmJob, still: Callable[[], bool] | None) -> RequeueOutcome | None:
    """Requeue the job. Returns why it is not requeued; None if it is, or was by others. Raises SlurmError."""
    undone = f"cannot requeue job {job.called}"
    try:
        await commands.change(undone, "scontrol", "requeue", "Incomplete", _leader(job), still=still)
    except CalledOff as error:
        return RequeueOutcome(result=Requeueing.CALLED_OFF, text=str(error))
    except SlurmError as error:
        if any(text in str(error) for text in _DONE_BY_OTHERS):
            return None
        for message, why in _NEVER:
            if message in str(error):
                return RequeueOutcome(result=Requeueing.REFUSED, text=why)
        raise
    return None


async def _bring_forward(commands: Commands, job: SlurmJob, current: SlurmJob, settles: float) -> RequeueOutcome:
    """Bring the start of a requeued job forward; an earlier start set by others is kept."""
    clock = asyncio.get_running_loop().time
    begun = clock()
    while current.state == _COMPLETING or clock() - begun < settles:
        if current.state not in (_PENDING, _COMPLETING):
            return RequeueOutcome(result=Requeueing.REQUEUED, text=f"it is {current.state} on {current.nodes[:60]}")
        if clock() - begun >= _PATIENCE:
            return RequeueOutcome(result=Requeueing.WAITS, text="it is requeued; its processes are still ending")
        await asyncio.sleep(_POLL if current.state == _COMPLETING else max(begun + settles - clock(), 0.0))
        again = await read_job(commands, job)
        if again is None:
            return RequeueOutcome(result=Requeueing.ENDED, text="it was requeued, and then ended or cancelled")
        current = again
    if current.state != _PENDING:
        return RequeueOutcome(result=Requeueing.REQUEUED, text=f"it is {current.state} on {current.nodes[:60]}")
    return await _start_now(commands, job)


async def _start_now(commands: Commands, job: SlurmJob) -> RequeueOutcome:
    undone = f"cannot bring the start of job {job.called} forward"
    try:
        await commands.change(undone, "scontrol", "update", f"JobId={_leader(job)}", "StartTime=now")
    except Refused as error:
        return RequeueOutcome(
            result=Requeueing.REQUEUED, text=f"it is requeued, and waits as long as Slurm makes it wait: {error}"
        )
    except SlurmError as error:
        if not any(text in str(error) for text in _DONE_BY_OTHERS):
            raise
    again = await read_job(commands, job)
    if again is None:
        return RequeueOutcome(result=Requeueing.ENDED, text="it was requeued, and then ended or cancelled")
    return RequeueOutcome(result=Requeueing.REQUEUED, text=f"it is requeued, and {again.state}")


def _leader(job: SlurmJob) -> str:
    """Return the number of the first part of a heterogeneous job: a requeue of it requeues the whole job."""
    return job.called.partition("+")[0]
