"""While this machine is about to go, or a GPU of it fails: look who is here, do what policy says is due, look again.

One task does it all, one turn after the other. What takes long (a requeue, a signal through the controller) goes on
beside it, one thing at a time for each job. Everything is an event before it is done and after it: a daemon that is killed in
between goes on where this one was, and tells nobody twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any

from gpuwarden.actuators.base import ActuatorError
from gpuwarden.actuators.slurm.last_words import LastWord, LastWordResult, last_words
from gpuwarden.actuators.slurm.requeue import Requeueing, requeue
from gpuwarden.departing.answers import Answers
from gpuwarden.departing.looks import Looks, on_gpu
from gpuwarden.departing.near import Near
from gpuwarden.departing.telling import Told, tell_all, tell_here
from gpuwarden.health.model import Event
from gpuwarden.log import get_logger
from gpuwarden.policy import departure_events as events
from gpuwarden.policy.delivery import Way
from gpuwarden.policy.departure import DepartureSettings, LastWords, NameNot, Plan, Requeue, Seen, Step, Tell, plan
from gpuwarden.policy.departure_budget import FAILING_GPU
from gpuwarden.policy.departure_model import DepartureState, Sent, id_of
from gpuwarden.policy.departure_preview import preview
from gpuwarden.policy.departure_state import fold
from gpuwarden.policy.model import Notice, Result
from gpuwarden.publish.job_socket import Acknowledged, Caller
from gpuwarden.publish.snapshot import NOTICE_TO_SIGNAL, Departures
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.facts import Stamp

AGAIN_AFTER = 1.0
"""Seconds after a look that failed, or a fault of ours."""
LOOK_IN_OBSERVE = 5.0
WARM_EVERY = 300.0
"""Seconds between two looks while no end is near: what is known of a process need not be read in the second that counts."""
ENDING_TURNS = 20
"""Times, of 3 s each, that it is waited for the processes of a requeued job to end: KillWait is 30 s by default."""

log = get_logger("gpuwarden")


class Departing:
    """`record` takes events that were folded here already. `enforce` False: everything is looked at, and nothing done."""

    def __init__(
        self,
        settings: DepartureSettings,
        looks: Looks,
        answers: Callable[[Callable[[Sequence[Event]], None]], Answers],
        *,
        enforce: bool,
        record: Callable[[Sequence[Event]], None],
        committed: Callable[[], Awaitable[bool]],
        boot_id: str,
        clock: Clock,
    ) -> None:
        self.state = DepartureState(boot_id=boot_id)
        self._settings = settings
        self._looks = looks
        self._answers = answers(self._take)
        self._enforce = enforce
        self._record = record
        self._committed = committed
        self._boot_id = boot_id
        self._clock = clock
        self._near = Near()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._beside: dict[str, asyncio.Task[None]] = {}
        self._preview: tuple[str, ...] = ()
        self._trouble = ""
        self._outcomes: Counter[str] = Counter()
        self._signal_seconds = NOTICE_TO_SIGNAL

    # --- life

    def run(self) -> None:
        self._task = asyncio.create_task(self._go_on())

    async def stop(self) -> None:
        """What is not done yet stays in the ledger."""
        tasks = [task for task in (self._task, *self._beside.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._looks.slurm is not None:
            await self._looks.slurm.close()

    # --- the state

    def remember(self, past: Iterable[Event]) -> None:
        for event in past:
            self.state = fold(self.state, event)

    def begin_again(self, past: Iterable[Event]) -> None:
        """The state is the fold of these events and of nothing else."""
        self.state = DepartureState(boot_id=self._boot_id)
        self.remember(past)

    def checkpoint(self) -> list[Event]:
        return events.checkpoint(self.state)

    def step(self, near: Near, now: Stamp) -> tuple[Event, ...]:
        """What begins or is over with it; folded, and to be written."""
        changed = near != self._near
        self._near = near
        begun: tuple[Event, ...] = ()
        if self._enforce:
            begun = events.follow(self.state, (*near.notices, *near.later), boot_id=self._boot_id, now=now)
            self.remember(begun)
        if changed or begun:
            self._wake.set()
        return begun

    # --- acknowledgements by the socket

    def current(self) -> Collection[str]:
        return [departure.id for departure in self.state.departures.values() if departure.over is None]

    async def job_of(self, caller: Caller) -> str | None:
        if caller.pid <= 0 or caller.started is None:
            return None
        return await self._looks.key_of((caller.pid, caller.started))

    def acknowledged(self, said: Acknowledged) -> None:
        self._take([self._answers.by_socket(said)])
        self._wake.set()

    # --- turns

    async def _go_on(self) -> None:
        await self._answers.forget()  # what an earlier daemon left; who is still told finds a new folder
        while True:
            try:
                again = await self._turn()
            except Exception:  # a fault of ours must end neither this nor the daemon
                log.exception("what is due before the end failed unexpectedly")
                again = self._clock().boottime + AGAIN_AFTER
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if again is None else max(again - self._clock().boottime, 0.0)):
                    await self._wake.wait()

    async def _turn(self) -> float | None:
        """When to look again; None: when something changes."""
        self._wake.clear()
        near = self._near
        if not near.notices:
            if self._preview:
                self._preview, self._trouble = (), ""
                await self._answers.forget()
            if not self._enforce:
                return None
            await self._looks.warm()
            return self._clock().boottime + WARM_EVERY
        look = await self._looks.look()
        self._say(look.trouble)
        now = self._clock()
        if look.seen is None:
            return now.boottime + AGAIN_AFTER
        views = [(notice, self._view(notice, look.seen, near)) for notice in near.notices]
        if self._enforce:
            self._take(await self._answers.look(self.state, look.seen.jobs))
            plans = [(notice, plan(self.state, notice, view, self._settings, self._clock())) for notice, view in views]
            await self._carry_out(plans, near)
            again = min(planned.again for _, planned in plans)
        else:
            again = now.boottime + LOOK_IN_OBSERVE
        now = self._clock()
        self._preview = tuple(
            line for notice, view in views for line in preview(self.state, notice, view, self._settings, now)
        )
        return again

    def _view(self, notice: Notice, seen: Seen, near: Near) -> Seen:
        seen = replace(seen, unschedulable=near.unschedulable)
        return on_gpu(seen, dict(near.holders).get(id_of(notice), frozenset())) if notice.kind == FAILING_GPU else seen

    def _say(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            log.warning("not all is known of who is here", reason=trouble)
        self._trouble = trouble

    # --- steps

    async def _carry_out(self, plans: Sequence[tuple[Notice, Plan]], near: Near) -> None:
        due = [(notice, step) for notice, planned in plans for step in planned.steps if self._is_free(step)]
        await self._tell([(notice, step) for notice, step in due if isinstance(step, Tell)])
        for notice, step in due:
            if isinstance(step, NameNot):
                self._take([self._not_requeued(step.key, step.text, permanent=step.permanent, named=True)])
            elif isinstance(step, Requeue):
                self._go(step.key, self._requeue(step))
            elif isinstance(step, LastWords):
                self._go(_LAST_WORDS, self._last_words(notice, step, near.reason))

    def _is_free(self, step: Step) -> bool:
        self._beside = {key: task for key, task in self._beside.items() if not task.done()}
        return (_LAST_WORDS if isinstance(step, LastWords) else step.key) not in self._beside

    def _go(self, key: str, work: Coroutine[Any, Any, None]) -> None:
        if key in self._beside and not self._beside[key].done():
            work.close()
            return
        self._beside[key] = asyncio.create_task(self._guarded(work))

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:  # a fault of ours with one job must not reach the others
            log.exception("what is due before the end failed unexpectedly")
        self._wake.set()

    async def _tell(self, due: Sequence[tuple[Notice, Tell]]) -> None:
        """Written first, all at once, then sent: those of this host in one go, the others each beside the rest."""
        if not due:
            return
        now = self._clock()
        for notice, step in due:
            self._take(
                events.signalling(id_of(notice), step.key, step.delivery, step.slurm, boot_id=self._boot_id, now=now)
            )
        sent = [(notice, step) for notice, step in due if step.delivery.receivers]
        written = asyncio.ensure_future(self._committed())
        await self._answers.expect([step.job for _, step in sent])
        for notice, step in sent:
            if step.delivery.way in (Way.JOB_WIDE, Way.BATCH) and self._looks.slurm is not None:
                self._go(step.key, self._tell_all(notice, step, written))
            elif step.delivery.way is Way.WATCH:
                self._told(notice, step, Told(result=Sent.WATCHED, text=step.delivery.text))
        here = [(notice, step) for notice, step in sent if step.delivery.way is Way.LOCAL]
        await written
        for (notice, step), told in zip(here, await tell_here([step for _, step in here]), strict=True):
            self._told(notice, step, told)

    async def _tell_all(self, notice: Notice, step: Tell, written: Awaitable[bool]) -> None:
        assert self._looks.slurm is not None  # noqa: S101 - checked by who calls
        self._told(notice, step, await tell_all(self._looks.slurm, step, written, self._clock().wall))

    def _told(self, notice: Notice, step: Tell, told: Told) -> None:
        now = self._clock()
        event = events.signalled(
            id_of(notice), step.key, step.delivery.way, told.result, count=told.count, text=told.text,
            boot_id=self._boot_id, now=now,
        )  # fmt: skip
        local = step.delivery.local_only and told.result is Sent.SENT
        self._outcomes["local_only" if local else told.result.value] += 1
        if told.result is Sent.SENT:
            self._signal_seconds = self._signal_seconds.with_value(max(0.0, now.boottime - notice.at.boottime))
        self._take([event])

    async def _requeue(self, step: Requeue) -> None:
        """Once it is pending it is requeued, for people and for policy; its processes may take KillWait to end."""
        assert self._looks.slurm is not None  # noqa: S101 - who knows the job has asked Slurm
        slurm, said = self._looks.slurm, False
        for _ in range(ENDING_TURNS):
            try:
                outcome = await requeue(slurm.commands, step.slurm, slurm.node)
            except ActuatorError as error:
                self._take([self._not_requeued(step.key, str(error), permanent=error.permanent)])
                return
            gone = outcome.result in (Requeueing.REQUEUED, Requeueing.WAITS)
            if gone and not said:
                said, now = True, self._clock()
                restarts = step.slurm.restarts
                self._take([events.requeued(step.key, restarts, outcome.text, boot_id=self._boot_id, now=now)])
            if outcome.result is not Requeueing.WAITS:
                break
        if not said:
            later = outcome.result is Requeueing.NOT_YET
            self._take([self._not_requeued(step.key, outcome.text, permanent=not later)])

    def _not_requeued(self, job: str, text: str, *, permanent: bool, named: bool = False) -> Event:
        return events.not_requeued(
            job, text, permanent=permanent, named=named, boot_id=self._boot_id, now=self._clock()
        )

    async def _last_words(self, notice: Notice, step: LastWords, reason: str) -> None:
        assert self._looks.slurm is not None  # noqa: S101 - policy says nothing where there is no Slurm
        slurm = self._looks.slurm
        try:
            outcome = await last_words(slurm.commands, slurm.node, LastWord(step.what), reason)
            result, text = _RESULTS[outcome.result], outcome.text
        except ActuatorError as error:
            result, text = Result.REFUSED if error.permanent else Result.RETRY, str(error)
        now = self._clock()
        self._take([events.last_words(id_of(notice), step.what, result, text, boot_id=self._boot_id, now=now)])

    def _take(self, happened: Sequence[Event]) -> None:
        if happened:
            self.remember(happened)
            self._record(happened)

    # --- what is published

    def shown(self) -> Departures:
        known = self.state.departures.values()
        open_ = tuple(departure for departure in known if departure.over is None)
        return Departures(
            departures=open_ or tuple(known)[-1:], preview=self._preview, outcomes=dict(self._outcomes),
            signal_seconds=self._signal_seconds, trouble=self._trouble,
        )  # fmt: skip


_LAST_WORDS = "last words"
_RESULTS = {
    LastWordResult.DONE: Result.DONE,
    LastWordResult.ALREADY: Result.ALREADY,
    LastWordResult.NOT_OURS: Result.DROPPED,
}
