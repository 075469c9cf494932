"""Delivers signals the way that policy chose, and returns the result in policy's terms."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from gpuwarden.base.log import get_logger
from gpuwarden.features.evacuation import pidfd
from gpuwarden.features.evacuation.policy.budget import MARK_TAKES
from gpuwarden.features.evacuation.policy.delivery import Delivery, Process, Way, signalled_from
from gpuwarden.features.evacuation.policy.model import Sent
from gpuwarden.features.evacuation.policy.steps import SignalJob
from gpuwarden.features.evacuation.slurm.job_mark import Marking, MarkOutcome, mark, unmark
from gpuwarden.features.evacuation.slurm.job_scan import SlurmJobScan
from gpuwarden.features.evacuation.slurm.job_signals import (
    Signalling,
    SignalOutcome,
    find_steps,
    signal_batch,
    signal_steps,
)
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.slurm.departing_facts import SlurmJob
from gpuwarden_collectors.slurm.errors import Refused, SlurmError

log = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """The result of a signal. `count`: the processes of this host that got it, as far as is known. `due`: nothing was
    sent; if the signal is wanted again, it is sent as if it had never begun.

    Two groups surely got nothing: `missed`, to be signalled on this host, and `passing`, processes of this host that
    failed for a reason that may pass.
    """

    result: Sent
    count: int = 0
    text: str = ""
    due: bool = False
    missed: tuple[Process, ...] = ()
    passing: tuple[Process, ...] = ()


WITHDRAWN = Delivered(result=Sent.UNSENT, text="not sent: the end was cancelled in the meantime", due=True)


async def signal_local(steps: Sequence[SignalJob]) -> list[Delivered]:
    """Signal all ranks of these jobs that are on this host, in one go."""
    aims = [(number, aim) for number, step in enumerate(steps) for aim in step.delivery.receivers]
    orders = [
        pidfd.Order(pid=a.receiver.pid, started=a.receiver.started, uid=a.receiver.uid, signal=a.signal)
        for _, a in aims
    ]
    sent = await pidfd.send_all(orders)
    of_job: list[list[pidfd.Sent]] = [[] for _ in steps]
    for (number, _), outcome in zip(aims, sent, strict=True):
        of_job[number].append(outcome)
    return [_delivered(step.delivery, results) for step, results in zip(steps, of_job, strict=True)]


def _delivered(delivery: Delivery, results: Sequence[pidfd.Sent]) -> Delivered:
    got = sum(result.result is pidfd.Result.SENT for result in results)
    unknown = any(result.result is pidfd.Result.UNKNOWN for result in results)
    missed = Counter(result.text for result in results if result.result is not pidfd.Result.SENT)
    text = "; ".join([delivery.text, *(f"{n} not: {why}" if n > 1 else why for why, n in missed.items())][:8])
    result = Sent.SENT if got else Sent.UNKNOWN if unknown else Sent.UNSENT
    passing = tuple((result.pid, result.started) for result in results if result.result in pidfd.PASSING)
    return Delivered(result=result, count=got, text=text, passing=passing)


async def signal_through_slurm(
    slurm: SlurmJobScan, step: SignalJob, sending: Callable[[], Awaitable[bool]], record: int | None, now: float
) -> Delivered:
    """Signal the whole job, or its batch script, through Slurm.

    All preparations precede `sending`, which records that the signal is being sent, and returns whether it is still
    wanted. `record`: an open one of `CommandRecords`. `now` in Unix time.
    """
    assert step.slurm is not None  # noqa: S101 - no other delivery goes this way
    job = step.slurm
    if step.delivery.way is Way.BATCH:
        if not await sending():
            return WITHDRAWN
        return await _sent(signal_batch(slurm.sending, job, step.delivery.signal, record), step)
    try:
        marked = await mark(slurm.commands, job, slurm.node, now)
    except SlurmError as error:
        return Delivered(result=Sent.UNSENT, text=str(error))
    if marked.result is Marking.TAKEN:
        return await _taken(step, marked, sending)
    if marked.result is not Marking.MARKED:
        return Delivered(result=Sent.UNSENT, text=marked.text)
    delivered = await _signal_steps(slurm, job, step, sending, record)
    if delivered.result is Sent.UNSENT:
        await _take_back(slurm, job, marked.mark)
    return delivered


async def _taken(step: SignalJob, marked: MarkOutcome, sending: Callable[[], Awaitable[bool]]) -> Delivered:
    """Return the result if another node has the mark. That node signals the steps that it runs, which may be others
    than those here: each step of a farm has one node.
    """
    receivers = step.delivery.receivers
    missed = tuple(aim.process for aim in receivers if not signalled_from(marked.node, aim.receiver))
    if missed and len(missed) == len(receivers):
        return Delivered(result=Sent.UNSENT, text=f"{marked.text}; none of its steps here runs there")
    if not await sending():
        return WITHDRAWN
    return replace(await watch(marked.text), missed=missed)


async def watch(text: str) -> Delivered:
    """Wait MARK_TAKES seconds for another node to signal the job. No other step of the job begins meanwhile: requeued
    before that, a rank would get Slurm's SIGTERM in place of the signal that it asks for.
    """
    await asyncio.sleep(MARK_TAKES)
    return Delivered(result=Sent.WATCHED, text=text)


async def _take_back(slurm: SlurmJobScan, job: SlurmJob, mark: str) -> None:
    """Remove the mark. If that fails too, other nodes take it as valid until it is too old."""
    try:
        await unmark(slurm.commands, job, mark)
    except SlurmError as error:
        log.warning("cannot remove the mark of a job that was not signalled", job=job.called, reason=str(error))


async def _signal_steps(
    slurm: SlurmJobScan, job: SlurmJob, step: SignalJob, sending: Callable[[], Awaitable[bool]], record: int | None
) -> Delivered:
    try:
        ready = await find_steps(slurm.commands, job, step.delivery.steps)
    except SlurmError as error:
        return Delivered(result=Sent.UNSENT, text=str(error))
    if ready.result is not Signalling.READY:
        return Delivered(result=Sent.UNSENT, text=ready.text)
    if not await sending():
        return WITHDRAWN
    delivered = await _sent(signal_steps(slurm.sending, job, ready.steps, step.delivery.signal, record), step)
    return replace(delivered, text="; ".join(filter(None, (delivered.text, ready.text))))


async def _sent(sending: Awaitable[SignalOutcome], step: SignalJob) -> Delivered:
    try:
        sent = await sending
    except SlurmError as error:
        return Delivered(result=Sent.UNSENT if isinstance(error, Refused) else Sent.UNKNOWN, text=str(error))
    if sent.result is not Signalling.SENT:
        return Delivered(result=Sent.UNSENT, text=sent.text)
    return Delivered(result=Sent.SENT, count=len(step.delivery.receivers), text=sent.text)
