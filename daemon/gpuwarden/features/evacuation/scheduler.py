"""Slurm's part of an evacuation: requeues a job, and sets the node's final state. Results are in policy's terms."""

from __future__ import annotations

from collections.abc import Callable

from gpuwarden.features.evacuation.policy.delivery import ALIVE
from gpuwarden.features.evacuation.slurm.final_node_state import FinalState, FinalStateResult, set_final_state
from gpuwarden.features.evacuation.slurm.job_scan import SlurmJobScan
from gpuwarden.features.evacuation.slurm.requeue import SETTLES_AFTER, Requeueing, requeue
from gpuwarden.policy.model import Result
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.slurm.departing import manages_steps, read_job, read_steps
from gpuwarden_collectors.slurm.departing_facts import SlurmJob
from gpuwarden_collectors.slurm.errors import Refused, SlurmError

ENDING_TURNS = 20
"""Most turns of 3 s each in which to wait for the processes of a requeued job to end: KillWait is 30 s by default."""
_RESULTS = {
    FinalStateResult.DONE: Result.DONE,
    FinalStateResult.ALREADY: Result.ALREADY,
    FinalStateResult.NOT_OURS: Result.DROPPED,
}


@dataclass(frozen=True, slots=True)
class NotRequeued:
    """Why a job was not requeued. `permanent`: it never will be."""

    text: str
    permanent: bool


async def put_elsewhere(
    slurm: SlurmJobScan, job: SlurmJob, pending: Callable[[str], None], still: Callable[[], bool]
) -> NotRequeued | None:
    """Requeue a job. Returns why it was not requeued; None if it was, or if `still`, called right before, returns
    False: the end was called off.

    `pending` is called once the job is requeued, with a text for people and for policy; its processes may take KillWait
    to end.
    """
    reported = False
    for _ in range(ENDING_TURNS):
        try:
            settles = 0.0 if reported else SETTLES_AFTER  # reported after a turn that took longer
            outcome = await requeue(slurm.commands, job, slurm.node, settles=settles, still=still)
        except SlurmError as error:
            return None if reported else NotRequeued(str(error), isinstance(error, Refused))
        if outcome.result is Requeueing.CALLED_OFF:
            return None
        if outcome.result in (Requeueing.REQUEUED, Requeueing.WAITS) and not reported:
            reported = True
            pending(outcome.text)
        if outcome.result is not Requeueing.WAITS:
            break
    return None if reported else NotRequeued(outcome.text, outcome.result is not Requeueing.NOT_YET)


async def steps_ended(slurm: SlurmJobScan, job: SlurmJob) -> bool:
    """Return True if no step of `job` runs any more, on any of its nodes, though its script does. Raises SlurmError.

    False for a job that manages its own steps: an empty list may mean that the node which lists them does not answer.
    """
    steps = await read_steps(slurm.commands, job)
    if not steps or any(step[:1].isdigit() for step in steps) or await manages_steps(slurm.commands, job):
        return False
    current = await read_job(slurm.commands, job)  # it may run again, and its ranks not yet
    return current is not None and current.restarts == job.restarts and current.state in ALIVE


async def give_up_node(
    slurm: SlurmJobScan, final_state: str, reason: str, still: Callable[[], bool]
) -> tuple[Result, str] | None:
    """Set the node's final state. `final_state`: the state that policy's step names; `reason`: that of the termination.
    Returns the result, and why, for people; None if `still` returned False: it is no longer wanted.
    """
    try:
        outcome = await set_final_state(slurm.commands, slurm.node, FinalState(final_state), reason, still=still)
    except SlurmError as error:
        return Result.REFUSED if isinstance(error, Refused) else Result.RETRY, str(error)
    if outcome.result is FinalStateResult.CALLED_OFF:
        return None
    return _RESULTS[outcome.result], outcome.text
