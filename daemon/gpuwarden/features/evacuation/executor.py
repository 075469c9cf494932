"""Carries out the steps of policy's plan. Each is recorded as an event right before it is done, and so is its result.

Long steps run in tasks of their own: one for each job, one more that queries its Slurm steps, and one each for the
final node state and the approval.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from gpuwarden.base.log import get_logger
from gpuwarden.features.evacuation.acknowledgements import Acknowledgements
from gpuwarden.features.evacuation.policy import events
from gpuwarden.features.evacuation.policy.budget import FAILING_GPU, budget
from gpuwarden.features.evacuation.policy.delivery import Way
from gpuwarden.features.evacuation.policy.model import BY_STEP, EvacuationState, Sent, open_evacuations
from gpuwarden.features.evacuation.policy.plan import Seen
from gpuwarden.features.evacuation.policy.steps import (
    Approve,
    CheckSteps,
    NameNot,
    Requeue,
    SetFinalState,
    SignalJob,
    Step,
)
from gpuwarden.features.evacuation.policy.unsettled import job_number, settle
from gpuwarden.features.evacuation.scheduler import give_up_node, put_elsewhere, steps_ended
from gpuwarden.features.evacuation.shown import NOTICE_TO_SIGNAL
from gpuwarden.features.evacuation.signalling import WITHDRAWN, Delivered, signal_local, signal_through_slurm, watch
from gpuwarden.features.evacuation.slurm.job_scan import SlurmJobScan
from gpuwarden.features.evacuation.unsent import Unsent
from gpuwarden.health.model import Event
from gpuwarden.policy.model import Notice, Result
from gpuwarden.policy.notices import id_of
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.slurm.departing_facts import CommandOutcome, SlurmJob
from gpuwarden_collectors.slurm.errors import SlurmError

if TYPE_CHECKING:  # imported where it is created
    from gpuwarden.features.evacuation.azure_approval import AzureApproval

log = get_logger()

Due = Sequence[tuple[Notice, Step]]


def _no_record(_notice: str, _job: str) -> CommandOutcome:
    return CommandOutcome.UNKNOWN


class Executor:
    """Carries out steps. `state` returns the current state. `append` gives events to the journal, from which a step
    follows soon; `write` causes no step, which would delay a signal: its outcome causes one. `wake` requests another
    turn.

    `approval` is None if no source takes one, `slurm` if there is no Slurm.
    """

    def __init__(
        self,
        state: Callable[[], EvacuationState],
        append: Callable[[Sequence[Event]], None],
        write: Callable[[Sequence[Event]], None],
        *,
        wake: Callable[[], None],
        committed: Callable[[], Awaitable[bool]],
        acknowledgements: Acknowledgements,
        slurm: SlurmJobScan | None,
        approval: AzureApproval | None,
        boot_id: str,
        clock: Clock,
    ) -> None:
        self.outcomes: Counter[str] = Counter()
        self.signal_seconds = NOTICE_TO_SIGNAL
        self._state = state
        self._append = append
        self._write = write
        self._wake = wake
        self._committed = committed
        self._acknowledgements = acknowledgements
        self._slurm = slurm
        self._approval = approval
        self._boot_id = boot_id
        self._clock = clock
        self._beside: dict[str, asyncio.Task[None]] = {}
        self._unsent = Unsent()

    @property
    def running(self) -> list[asyncio.Task[None]]:
        return [task for task in self._beside.values() if not task.done()]

    async def close(self) -> None:
        if self._approval is not None:
            await self._approval.close()

    def is_free(self, step: Step) -> bool:
        return not self.is_busy(_key(step))

    def is_busy(self, key: str) -> bool:
        """True while a step for this key is in progress: the `key_of` a job, or the `_key` of a step that belongs to no
        job.
        """
        self._beside = {key: task for key, task in self._beside.items() if not task.done()}
        return key in self._beside

    def settle(self, seen: Seen) -> None:
        """Append events for signals that nobody is sending any more: those during which an earlier daemon was killed,
        and those that were not sent and are due again.
        """
        now = self._clock()
        for unsent in self._unsent.take(now.boottime):
            self._append(
                events.settled(
                    unsent.notice,
                    unsent.job,
                    Way.LOCAL,
                    Sent.UNSENT,
                    unsent.processes,
                    text=unsent.text,
                    due=True,
                    boot_id=self._boot_id,
                    now=now,
                )
            )

        def slurm_of(job: str) -> SlurmJob | None:
            number = job_number(job)
            return seen.slurm.get(number) if seen.controller and number is not None else None

        record_of = self._slurm.records.read if self._slurm is not None else _no_record
        outcome_events = settle(
            self._state(), slurm_of, record_of, seen.node, self.is_busy, boot_id=self._boot_id, now=self._clock()
        )
        jobs = {(event.data["job"], event.data["way"]): event.data["result"] for event in outcome_events}
        self.outcomes.update(map(str, jobs.values()))
        self._append(outcome_events)

    def write_down(self, notice: Notice, step: Step) -> None:
        """Record what is to be remembered of a step before anything is done. The receivers of a signal are recorded
        right before it is sent.
        """
        name, now = id_of(notice), self._clock()
        if isinstance(step, SignalJob):
            if step.delivery.way in (Way.WATCH, Way.NONE):
                self._sending(notice, step)
            elif step.delivery.way is Way.JOB_WIDE and step.slurm is not None:
                marking = events.marking(
                    name, step.key, step.delivery, step.slurm, remaining=step.remaining, boot_id=self._boot_id, now=now
                )
                self._write(marking)
        elif isinstance(step, NameNot):
            self._append([self._not_requeued(step.key, step.text, permanent=step.permanent, named=True)])
        elif isinstance(step, Approve):
            self._append([events.approving(name, boot_id=self._boot_id, now=now)])

    def begin(self, due: Due, reason: str) -> None:
        """Start all steps except signals. `reason`: the text of gpuwarden's termination at the scheduler."""
        for notice, step in due:
            if isinstance(step, Requeue):
                self._go(step, self._requeue(notice, step))
            elif isinstance(step, CheckSteps):
                self._go(step, self._check_steps(step))
            elif isinstance(step, SetFinalState):
                self._go(step, self._set_final_state(notice, step, reason))
            elif isinstance(step, Approve):
                self._go(step, self._approve(notice, step))

    async def signal(self, due: Due) -> None:
        """Send the signals that are due: those to this host in one go, each of the others in a task of its own. Nothing
        is sent before it is on disk.
        """
        sent = [(notice, step) for notice, step in due if isinstance(step, SignalJob) and step.delivery.receivers]
        if not sent:
            return
        await self._acknowledgements.expect([step.job for _, step in sent])
        for notice, step in sent:
            if step.delivery.way in (Way.JOB_WIDE, Way.BATCH) and self._slurm is not None:
                self._go(step, self._signal_through_slurm(notice, step))
            elif step.delivery.way is Way.WATCH:
                self._go(step, self._watch(notice, step))
        await self._signal_local([(notice, step) for notice, step in sent if step.delivery.way is Way.LOCAL])

    async def _signal_local(self, due: Sequence[tuple[Notice, SignalJob]]) -> None:
        due = [(notice, step) for notice, step in due if self._goes_on(notice)]
        if not due:
            return
        for notice, step in due:
            self._sending(notice, step)
        await self._committed()
        withdrawn = [(notice, step) for notice, step in due if not self._goes_on(notice)]
        for notice, step in withdrawn:
            self._delivered(notice, step, WITHDRAWN)
        due = [order for order in due if order not in withdrawn]
        for (notice, step), delivered in zip(due, await signal_local([step for _, step in due]), strict=True):
            self._delivered(notice, step, delivered)

    # --- parallel to the turns

    def _go(self, step: Step, work: Coroutine[Any, Any, None]) -> None:
        if not self.is_free(step):
            work.close()
            return
        self._beside[_key(step)] = asyncio.create_task(self._guarded(work))

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:  # an error with one job must not affect the others
            log.exception("evacuation step failed")
        self._wake()

    def _goes_on(self, notice: Notice) -> bool:
        """True if the notice was not withdrawn meanwhile, or another one still announces the end of the machine. Each
        GPU has its own jobs, so for a failing GPU its own notice alone counts.
        """
        current = open_evacuations(self._state())
        if notice.kind == FAILING_GPU:
            return id_of(notice) in current
        return any(other.kind != FAILING_GPU for other in current.values())

    def _ends_now(self, notice: Notice) -> bool:
        """True if the notice itself was not withdrawn and its end did not move away: another notice has its own time
        for the final node state.
        """
        evacuation = open_evacuations(self._state()).get(id_of(notice))
        if evacuation is None:
            return False
        deadline = None if evacuation.deadline is None else evacuation.deadline.boottime
        at = budget(evacuation.kind, evacuation.at.boottime, deadline).final_state_at
        return at is not None and self._clock().boottime >= at

    async def _signal_through_slurm(self, notice: Notice, step: SignalJob) -> None:
        assert self._slurm is not None  # noqa: S101 - checked by who calls

        delivered = Delivered(result=Sent.UNSENT, text="the daemon failed before it was sent; see its log")

        async def sending() -> bool:
            nonlocal delivered
            if self._goes_on(notice):
                delivered = Delivered(result=Sent.UNKNOWN, text="the daemon failed while it was sent; see its log")
                self._sending(notice, step)
                await self._committed()
            return self._goes_on(notice)

        await self._committed()  # the record of the mark is on disk first
        try:
            delivered = WITHDRAWN
            if self._goes_on(notice):
                with self._slurm.records.begin(id_of(notice), step.key) as record:
                    delivered = await signal_through_slurm(self._slurm, step, sending, record, self._clock().wall)
        except Exception:
            self._delivered(notice, step, delivered)
            raise
        self._delivered(notice, step, delivered)

    def _sending(self, notice: Notice, step: SignalJob) -> None:
        write = self._write if step.delivery.receivers else self._append
        write(
            events.signalling(
                id_of(notice),
                step.key,
                step.delivery,
                step.slurm,
                remaining=step.remaining,
                again=step.again,
                boot_id=self._boot_id,
                now=self._clock(),
            )
        )

    async def _watch(self, notice: Notice, step: SignalJob) -> None:
        self._delivered(notice, step, await watch(step.delivery.text))

    def _delivered(self, notice: Notice, step: SignalJob, delivered: Delivered) -> None:
        now, name, way = self._clock(), id_of(notice), step.delivery.way
        if delivered.passing and not step.again:
            self._unsent.add(name, step.key, delivered.passing, f"tried again: {delivered.text}", now.boottime)
        came_of_it: Sequence[Event] = (
            events.signalled(
                name,
                step.key,
                way,
                delivered.result,
                count=delivered.count,
                text=delivered.text,
                again=step.again,
                boot_id=self._boot_id,
                now=now,
            ),
        )
        if delivered.due and not step.again:
            receivers = [aim.process for aim in step.delivery.receivers]
            came_of_it = events.settled(
                name,
                step.key,
                way,
                delivered.result,
                receivers,
                text=delivered.text,
                due=True,
                boot_id=self._boot_id,
                now=now,
            )
        if delivered.missed:
            text = "another node signals the job, and none of these ranks is in a step that runs there"
            missed = events.settled(
                name, step.key, way, Sent.UNSENT, delivered.missed, text=text, boot_id=self._boot_id, now=now
            )
            came_of_it = (*missed, *came_of_it)
        local = step.delivery.local_only and delivered.result is Sent.SENT
        self.outcomes["local_only" if local else delivered.result.value] += 1
        if delivered.result is Sent.SENT and _was_here(step, notice):
            self.signal_seconds = self.signal_seconds.with_value(max(0.0, now.boottime - notice.at.boottime))
        self._append(came_of_it)

    async def _requeue(self, notice: Notice, step: Requeue) -> None:
        assert self._slurm is not None  # noqa: S101 - who knows the job has asked Slurm
        if not self._goes_on(notice):
            return

        def pending(text: str) -> None:
            now, restarts = self._clock(), step.slurm.restarts
            self._append([events.requeued(step.key, restarts, text, boot_id=self._boot_id, now=now)])

        if (stays := await put_elsewhere(self._slurm, step.slurm, pending, lambda: self._goes_on(notice))) is not None:
            self._append([self._not_requeued(step.key, stays.text, permanent=stays.permanent)])

    async def _check_steps(self, step: CheckSteps) -> None:
        assert self._slurm is not None  # noqa: S101 - who knows the job has asked Slurm
        try:
            ended = await steps_ended(self._slurm, step.slurm)
        except SlurmError as error:
            log.warning("the steps of a job were not read: its time decides", job=step.key, reason=str(error))
            return
        if ended:
            now = self._clock()
            self._append([events.saved(step.key, BY_STEP, saved=False, all_ranks=True, boot_id=self._boot_id, now=now)])

    def _not_requeued(self, job: str, text: str, *, permanent: bool, named: bool = False) -> Event:
        return events.not_requeued(
            job, text, permanent=permanent, named=named, boot_id=self._boot_id, now=self._clock()
        )

    async def _set_final_state(self, notice: Notice, step: SetFinalState, reason: str) -> None:
        assert self._slurm is not None  # noqa: S101 - policy plans it only where there is Slurm
        written = await give_up_node(self._slurm, step.what, reason, lambda: self._ends_now(notice))
        if written is None:
            return
        name, (result, text) = id_of(notice), written
        self._append([events.final_node_state(name, step.what, result, text, boot_id=self._boot_id, now=self._clock())])

    async def _approve(self, notice: Notice, step: Approve) -> None:
        """Approve the end early, only once the attempt is on disk: the next daemon must know how often it was tried."""
        name = id_of(notice)
        result, text = Result.RETRY, "ledger not writable; retrying"
        if await self._committed() and self._approval is not None:
            result, text = await self._approval.approve(step.id, lambda: name in open_evacuations(self._state()))
        self._append([events.approved(name, result, text, boot_id=self._boot_id, now=self._clock())])


def _key(step: Step) -> str:
    match step:
        case SetFinalState():
            return "final node state"
        case Approve():
            return "approval"
        case CheckSteps():
            return f"steps of {step.key}"
    return step.key


def _was_here(step: SignalJob, notice: Notice) -> bool:
    """True if a receiver started before the end was announced: a later process could not be signalled sooner. For a GPU
    nothing was announced.
    """
    if notice.kind == FAILING_GPU:
        return False
    return any(aim.receiver.started / _TICKS < notice.at.boottime for aim in step.delivery.receivers)


_TICKS = os.sysconf("SC_CLK_TCK")
