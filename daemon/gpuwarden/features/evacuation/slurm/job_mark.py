"""Leader election through the job's AdminComment: when several nodes of a job are terminated together, exactly one signals it.

    read   no mark in force, and no foreign text    else TAKEN, or FOREIGN: it is never written over
    write  gpuwarden:ckpt@NODE@UNIXTIME                 into the job's AdminComment
    pause  PAUSE_LEAST at least, and as long as it takes for nodes that read before this write to have written
    read   own mark still there: MARKED               else TAKEN by the node that wrote last

Slurm has no conditional write. The node that wrote last finds its own mark, those before it another's, as long as no node
takes longer from its read to its write than the others pause; a slow node pauses longer. Where a controller answers one
node within 40 ms and another one not within 80 ms, both may signal: a job that saves on a signal saves twice then.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum

from gpuwarden.features.evacuation.policy.delivery import MARK_STANDS, RUNNING, parse_mark, standing_mark
from gpuwarden.features.evacuation.policy.delivery import mark as written
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.slurm.client import Commands
from gpuwarden_collectors.slurm.departing import read_job
from gpuwarden_collectors.slurm.departing_facts import SlurmJob

PAUSE_LEAST, PAUSE_MOST = 0.08, 1.0  # seconds
_PAUSE_TIMES = 2.0  # of the duration of the own read and write


class Marking(StrEnum):
    MARKED = "marked"  # this node is to signal the whole job
    TAKEN = "taken"  # another node does
    FOREIGN = "foreign"  # another party's text is there; it was left alone
    GONE = "gone"  # it has ended, or was requeued: there is nothing to signal any more


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkOutcome:
    """The result of an attempt to mark a job."""

    result: Marking
    text: str
    """For people."""
    node: str = ""
    """With TAKEN: the node whose mark is in force."""
    mark: str = ""
    """With MARKED: the own mark."""


async def mark(
    commands: Commands, job: SlurmJob, node: str, now: float, *, pause_least: float = PAUSE_LEAST
) -> MarkOutcome:
    """Mark `job`, as it was read a moment ago, for `node`; `now` is Unix time. Takes about 0.12 s on a quiet controller.

    A mark of this node is renewed: an attempt with an unknown result is repeated. Raises SlurmError;
    what timed out may be written later.
    """
    clock = asyncio.get_running_loop().time
    begun = clock()
    current_job = await read_job(commands, job)
    if current_job is None or not is_same_run(job, current_job):
        return _gone(current_job)
    if (obstacle := _obstacle(current_job, node, now)) is not None:
        return obstacle
    text = written(
        node, max(now, current_job.started)
    )  # by the controller's clock: a mark from before the run does not count
    await commands.change(
        f"cannot mark job {job.called}", "scontrol", "update", f"JobId={job.called}", f"AdminComment={text}"
    )
    await asyncio.sleep(min(max(pause_least, _PAUSE_TIMES * (clock() - begun)), max(pause_least, PAUSE_MOST)))
    current_job = await read_job(commands, job)
    if current_job is None or not is_same_run(job, current_job):
        return _gone(current_job)
    if current_job.admin_comment == text:
        return MarkOutcome(result=Marking.MARKED, text=f"marked {text}", mark=text)
    return _obstacle(current_job, node, now) or _foreign("", "was removed at once")


async def unmark(commands: Commands, job: SlurmJob, mark: str) -> None:
    """Remove `mark` after a failed signal: other nodes would wait for a signal that is never sent. Raises SlurmError.

    Any other text is left alone.
    """
    current_job = await read_job(commands, job)
    if current_job is not None and is_same_run(job, current_job) and current_job.admin_comment == mark:
        undone = f"cannot remove the mark of job {job.called}"
        await commands.change(undone, "scontrol", "update", f"JobId={job.called}", "AdminComment=")


def is_same_run(job: SlurmJob, current_job: SlurmJob) -> bool:
    """True if the job runs, and was not requeued since `job` was read."""
    return current_job.state == RUNNING and current_job.restarts == job.restarts


def _obstacle(job: SlurmJob, node: str, now: float) -> MarkOutcome | None:
    current = (job.admin_comment or "").strip()
    theirs = standing_mark(current, job.started, now)
    if theirs is not None and theirs.node != node:
        return MarkOutcome(
            result=Marking.TAKEN,
            node=theirs.node,
            text=f"{theirs.node} signals the whole job: its mark is less than {MARK_STANDS:g} s old",
        )
    if current and parse_mark(current) is None:
        return _foreign(current, "is left alone")
    return None


def _foreign(current: str, outcome: str) -> MarkOutcome:
    return MarkOutcome(
        result=Marking.FOREIGN, text=f"the administrators' comment {current[:60]!r} of the job {outcome}"
    )


def _gone(current_job: SlurmJob | None) -> MarkOutcome:
    if current_job is None:
        return MarkOutcome(result=Marking.GONE, text="it has ended")
    return MarkOutcome(
        result=Marking.GONE, text=f"it is {current_job.state}, requeued {current_job.restarts} times by now"
    )
