"""While this machine is about to go, or a GPU of it fails: look who is here, do what policy says is due, look again.

One task does it all, one turn after the other. What takes long (a requeue, a signal through the controller) goes on
beside it, one thing at a time for each job. Everything is an event before it is done and after it: a daemon that is killed in
between goes on where this one was, and tells nobody twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any

from gpuwarden.departing.answers import Answers, is_news
from gpuwarden.departing.looks import Looks, on_gpu
from gpuwarden.departing.near import Near
from gpuwarden.departing.scheduler import give_up_node, put_elsewhere
from gpuwarden.departing.telling import WITHDRAWN, Told, tell_all, tell_here
from gpuwarden.health.model import Event
from gpuwarden.log import get_logger
from gpuwarden.policy import departure_events as events
from gpuwarden.policy.delivery import Way
from gpuwarden.policy.departure import DepartureSettings, LastWords, NameNot, Requeue, Seen, Step, Tell, plan
from gpuwarden.policy.departure_budget import FAILING_GPU
from gpuwarden.policy.departure_model import (
    DepartureState,
    Sent,
    answered,
    id_of,
    jobs_of,
    key_of,
    open_departures,
)
from gpuwarden.policy.departure_preview import preview
from gpuwarden.policy.departure_state import fold
from gpuwarden.policy.model import Notice
from gpuwarden.publish.job_socket import Acknowledged, Caller
from gpuwarden.publish.snapshot import NOTICE_TO_SIGNAL, Departures
from gpuwarden.publish.unix_socket import TRY_AGAIN, VerbError
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.receivers.facts import LocalJob

AGAIN_AFTER = 1.0
"""Seconds after a look that failed, or a fault of ours."""
LOOK_IN_OBSERVE = 5.0
WARM_EVERY = 300.0
"""Seconds between two looks while no end is near: what is known of a process need not be read in the second that counts."""

EARLY_MOST = 1_024
"""Answers kept of jobs that are not known yet."""
STOPS_WITHIN = 2.0

log = get_logger("gpuwarden")


class Departing:
    """`record` takes events that were folded here already. `enforce` False: everything is looked at, and nothing done.

    `names` of jobs may be told to whoever can connect.
    """

    def __init__(
        self,
        settings: DepartureSettings,
        looks: Looks,
        answers: Callable[[Callable[[Sequence[Event]], None]], Answers],
        *,
        enforce: bool,
        record: Callable[[Sequence[Event]], None],
        committed: Callable[[], Awaitable[bool]],
        names: bool,
        boot_id: str,
        clock: Clock,
    ) -> None:
        self.state = DepartureState(boot_id=boot_id)
        self._settings = settings
        self._looks = looks
        self._answers = answers(self._take)
        self._enforce = enforce
        self._names = names
        self._record = record
        self._committed = committed
        self._boot_id = boot_id
        self._clock = clock
        self._near = Near()
        self._wake = asyncio.Event()
        self._ending = False
        self._tidied = False
        self._task: asyncio.Task[None] | None = None
        self._beside: dict[str, asyncio.Task[None]] = {}
        self._preview: tuple[str, ...] = ()
        self._trouble = ""
        self._outcomes: Counter[str] = Counter()
        self._signal_seconds = NOTICE_TO_SIGNAL
        self._looked: tuple[Notice, ...] = ()
        self._early: dict[tuple[str, int], Acknowledged] = {}  # by job and rank

    # --- life

    def run(self) -> None:
        self._task = asyncio.create_task(self._go_on())

    async def stop(self) -> None:
        """Whoever is to be told by now is told, if that takes no longer than STOPS_WITHIN. The rest stays in the ledger."""
        self._ending = True
        self._wake.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOPS_WITHIN):
                await asyncio.gather(*(asyncio.shield(task) for task in (self._task,) if task is not None))
                await asyncio.gather(*map(asyncio.shield, self._beside.values()))
        tasks = [task for task in (self._task, *self._beside.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._answers.stop()
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
        acted = (*near.notices, *near.later) if self._enforce else ()  # who enforced before has begun what is over now
        begun = events.follow(self.state, acted, boot_id=self._boot_id, now=now)
        self.remember(begun)
        if changed or begun:
            self._wake.set()
        return begun

    # --- acknowledgements by the socket

    def current(self) -> Collection[str]:
        return list(open_departures(self.state))

    async def job_of(self, caller: Caller) -> str | None:
        if caller.pid <= 0 or caller.started is None:
            return None
        return await self._looks.key_of((caller.pid, caller.started))

    def acknowledged(self, said: Acknowledged) -> None:
        """A job that read the notice itself may answer before it is told: that is kept until the job is known."""
        known = jobs_of(self.state).get(said.job)
        if known is None:
            if len(self._early) >= EARLY_MOST:
                raise VerbError(f"{said.job} was not seen yet, and too many wait to be heard; try again", TRY_AGAIN)
            self._early[said.job, said.rank] = said
        elif is_news(known, said.rank, (said.pid, said.started)):
            self._take([self._answers.by_socket(said)])
            self._wake.set()

    def _hear_early(self) -> None:
        known = jobs_of(self.state)
        for key in [key for key in self._early if key[0] in known]:
            self.acknowledged(self._early.pop(key))

    def settled(self) -> bool:
        """An end is near, everybody here was looked at for it, and whoever was told has answered or ended."""
        looked = bool(self._near.notices) and self._looked == self._near.notices
        beside = any(not task.done() for task in self._beside.values())
        return looked and not beside and all(map(answered, jobs_of(self.state).values()))

    # --- turns

    async def _go_on(self) -> None:
        while True:
            try:
                again = await self._turn()
            except Exception:  # a fault of ours must end neither this nor the daemon
                log.exception("what is due before the end failed unexpectedly")
                again = self._clock().boottime + AGAIN_AFTER
            if self._ending:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if again is None else max(again - self._clock().boottime, 0.0)):
                    await self._wake.wait()

    async def _turn(self) -> float | None:
        """When to look again; None: when something changes."""
        self._wake.clear()
        near = self._near
        if not near.notices:
            self._early.clear()
            if self._preview or not self._tidied:
                self._preview, self._trouble, self._tidied = (), "", True
                await self._answers.forget()
            if not self._enforce or self._ending:
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
            await self._expect(look.seen.jobs)
            self._take(await self._answers.look(self.state, look.seen.jobs))
            again = await self._carry_out(views, near)
            self._hear_early()
        else:
            again = now.boottime + LOOK_IN_OBSERVE
        now = self._clock()
        self._preview = tuple(
            line
            for notice, view in views
            for line in preview(self.state, notice, view, self._settings, now, names=self._names)
        )
        self._looked = near.notices
        return again

    async def _expect(self, jobs: Iterable[LocalJob]) -> None:
        """Who is known has a folder to answer in: the one that an earlier daemon has made, if there is one."""
        known = jobs_of(self.state)
        await self._answers.expect([job for job in jobs if key_of(job) in known])

    def _view(self, notice: Notice, seen: Seen, near: Near) -> Seen:
        seen = replace(seen, unschedulable=near.unschedulable)
        return on_gpu(seen, dict(near.holders).get(id_of(notice), frozenset())) if notice.kind == FAILING_GPU else seen

    def _say(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            log.warning("not all is known of who is here", reason=trouble)
        self._trouble = trouble

    # --- steps

    async def _carry_out(self, views: Sequence[tuple[Notice, Seen]], near: Near) -> float:
        """When to look again. One notice after the other: who is told for the one is not told for the next one, too."""
        due: list[tuple[Notice, Step]] = []
        again = []
        for notice, seen in views:
            planned = plan(self.state, notice, seen, self._settings, self._clock())
            again.append(planned.again)
            for step in filter(self._is_free, planned.steps):
                self._write_down(notice, step)
                due.append((notice, step))
        await self._tell([(notice, step) for notice, step in due if isinstance(step, Tell)])
        for notice, step in () if self._ending else due:
            if isinstance(step, Requeue):
                self._go(step.key, self._requeue(notice, step))
            elif isinstance(step, LastWords):
                self._go(_LAST_WORDS, self._last_words(notice, step, near.reason))
        return min(again)

    def _write_down(self, notice: Notice, step: Step) -> None:
        """What is remembered of a step before anything is done."""
        if isinstance(step, Tell):
            name, now = id_of(notice), self._clock()
            self._take(events.signalling(name, step.key, step.delivery, step.slurm, boot_id=self._boot_id, now=now))
        elif isinstance(step, NameNot):
            self._take([self._not_requeued(step.key, step.text, permanent=step.permanent, named=True)])

    def _goes_on(self, notice: Notice) -> bool:
        """It was not withdrawn meanwhile, or another one still announces the same end."""
        of_gpu = notice.kind == FAILING_GPU
        return any((one.kind == FAILING_GPU) == of_gpu for one in open_departures(self.state).values())

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
        """Once it is on disk: those of this host in one go, the others each beside the rest."""
        sent = [(notice, step) for notice, step in due if step.delivery.receivers]
        if not sent:
            return
        written = asyncio.ensure_future(self._committed())
        await self._answers.expect([step.job for _, step in sent])
        for notice, step in sent:
            if step.delivery.way in (Way.JOB_WIDE, Way.BATCH) and self._looks.slurm is not None:
                self._go(step.key, self._tell_all(notice, step, written))
            elif step.delivery.way is Way.WATCH:
                self._told(notice, step, Told(result=Sent.WATCHED, text=step.delivery.text))
        await written
        here = [(notice, step) for notice, step in sent if step.delivery.way is Way.LOCAL and self._goes_on(notice)]
        for notice, step in sent:
            if step.delivery.way is Way.LOCAL and not self._goes_on(notice):
                self._told(notice, step, WITHDRAWN)
        for (notice, step), told in zip(here, await tell_here([step for _, step in here]), strict=True):
            self._told(notice, step, told)

    async def _tell_all(self, notice: Notice, step: Tell, written: Awaitable[bool]) -> None:
        assert self._looks.slurm is not None  # noqa: S101 - checked by who calls
        now, goes_on = self._clock().wall, lambda: self._goes_on(notice)
        self._told(notice, step, await tell_all(self._looks.slurm, step, written, goes_on, now))

    def _told(self, notice: Notice, step: Tell, told: Told) -> None:
        now = self._clock()
        event = events.signalled(
            id_of(notice), step.key, step.delivery.way, told.result, count=told.count, text=told.text,
            boot_id=self._boot_id, now=now,
        )  # fmt: skip
        local = step.delivery.local_only and told.result is Sent.SENT
        self._outcomes["local_only" if local else told.result.value] += 1
        if told.result is Sent.SENT and _was_here(step, notice):
            self._signal_seconds = self._signal_seconds.with_value(max(0.0, now.boottime - notice.at.boottime))
        self._take([event])

    async def _requeue(self, notice: Notice, step: Requeue) -> None:
        assert self._looks.slurm is not None  # noqa: S101 - who knows the job has asked Slurm
        if not self._goes_on(notice):
            return

        def pending(text: str) -> None:
            now, restarts = self._clock(), step.slurm.restarts
            self._take([events.requeued(step.key, restarts, text, boot_id=self._boot_id, now=now)])

        if (stays := await put_elsewhere(self._looks.slurm, step.slurm, pending)) is not None:
            self._take([self._not_requeued(step.key, stays.text, permanent=stays.permanent)])

    def _not_requeued(self, job: str, text: str, *, permanent: bool, named: bool = False) -> Event:
        return events.not_requeued(
            job, text, permanent=permanent, named=named, boot_id=self._boot_id, now=self._clock()
        )

    async def _last_words(self, notice: Notice, step: LastWords, reason: str) -> None:
        assert self._looks.slurm is not None  # noqa: S101 - policy says nothing where there is no Slurm
        if not self._goes_on(notice):
            return
        result, text = await give_up_node(self._looks.slurm, step.what, reason)
        now = self._clock()
        self._take([events.last_words(id_of(notice), step.what, result, text, boot_id=self._boot_id, now=now)])

    def _take(self, happened: Sequence[Event]) -> None:
        if happened:
            self.remember(happened)
            self._record(happened)

    # --- what is published

    def shown(self) -> Departures:
        going_on = tuple(open_departures(self.state).values())
        return Departures(
            departures=going_on or tuple(self.state.departures.values())[-1:], preview=self._preview, outcomes=dict(self._outcomes),
            signal_seconds=self._signal_seconds,
            trouble=self._trouble and f"not all is known of them: {self._trouble}",
        )  # fmt: skip


def _was_here(step: Tell, notice: Notice) -> bool:
    """Before the end was announced; who came later could not be told sooner. Of a GPU nothing was announced."""
    if notice.kind == FAILING_GPU:
        return False
    return any(aim.receiver.started / _TICKS < notice.at.boottime for aim in step.delivery.receivers)


_TICKS = os.sysconf("SC_CLK_TCK")
_LAST_WORDS = "last words"
