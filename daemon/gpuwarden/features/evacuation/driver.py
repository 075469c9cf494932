"""While this machine is about to end or a GPU fails: scans the jobs, carries out policy's plan, and scans again.

One task does this, turn by turn. Long steps (a requeue, a signal through the controller) run in tasks of their own: see
executor.py. Each step is recorded as an event before and after it is done: a daemon that follows a killed one continues
from there, and signals no process twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from gpuwarden.base.capabilities import FOR_SIGNALS, lacking, names
from gpuwarden.base.log import get_logger
from gpuwarden.features.evacuation.acknowledge import Acknowledged, Membership
from gpuwarden.features.evacuation.acknowledgements import Acknowledgements, is_news
from gpuwarden.features.evacuation.active_notices import ActiveNotices
from gpuwarden.features.evacuation.executor import Executor
from gpuwarden.features.evacuation.job_scan import JobScan, on_gpu
from gpuwarden.features.evacuation.policy import events
from gpuwarden.features.evacuation.policy.budget import FAILING_GPU
from gpuwarden.features.evacuation.policy.model import EvacuationState, jobs_of, key_of, open_evacuations
from gpuwarden.features.evacuation.policy.plan import EvacuationSettings, Seen, awaits_jobs, plan
from gpuwarden.features.evacuation.policy.preview import ignored, preview, summary
from gpuwarden.features.evacuation.policy.state import fold
from gpuwarden.features.evacuation.policy.steps import SignalJob, Step
from gpuwarden.features.evacuation.shown import Evacuations
from gpuwarden.health.model import Event, EventKind
from gpuwarden.policy.model import Notice
from gpuwarden.policy.notices import id_of
from gpuwarden.publish.sockets.jobs import Caller
from gpuwarden.publish.sockets.unix_socket import TRY_AGAIN, VerbError
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.receivers.facts import LocalJob

if TYPE_CHECKING:  # imported where it is created
    from gpuwarden.features.evacuation.azure_approval import AzureApproval

AGAIN_AFTER = 1.0
"""Seconds after a scan that failed, or an internal error."""
SCAN_IN_OBSERVE = 5.0
WARM_EVERY = 300.0
"""Seconds between two scans while no end is imminent, so that the first scan of an evacuation has less to read."""

EARLY_MOST = 1_024
"""Most acknowledgements kept of jobs that are not known yet."""
STOPS_WITHIN = 5.0
"""Seconds. The scan in progress and the last one each wait 1 s for the controller, and slurmd's list on a busy host
takes another second; systemd waits 20 s."""
SIGNALLED_WITHIN = 2.0
"""Seconds for which the sender of a notice waits until jobs are signalled; the control socket answers within 4."""

_NOTICES = (EventKind.NOTICED, EventKind.NOTICE_ENDED)

log = get_logger()


class Evacuation:
    """Runs the evacuation of this node, turn by turn.

    `active` returns the notices that are acted on now. `append` hands events to the journal, from which a step follows
    soon; `write` does the same without a step. With `enforce` False, jobs are scanned and nothing is done. With
    `names`, the names of jobs may be shown to every client of the web server. With `approval` None, no end is approved
    early.
    """

    def __init__(
        self,
        settings: EvacuationSettings,
        job_scan: JobScan,
        acknowledgements: Acknowledgements,
        approval: AzureApproval | None = None,
        *,
        active: Callable[[Stamp], ActiveNotices],
        enforce: bool,
        append: Callable[[Sequence[Event]], None],
        write: Callable[[Sequence[Event]], None],
        committed: Callable[[], Awaitable[bool]],
        names: bool,
        boot_id: str,
        clock: Clock,
    ) -> None:
        self.state = EvacuationState(boot_id=boot_id)
        self._settings = settings
        self._job_scan = job_scan
        self._acknowledgements = acknowledgements
        self._enforce = enforce
        self._names = names
        self._append = append
        self._write = write
        self._boot_id = boot_id
        self._clock = clock
        self._active_now = active
        self._active = ActiveNotices()
        self._wake = asyncio.Event()
        self._ending = False
        self._tidied = False
        self._task: asyncio.Task[None] | None = None
        self._executor = Executor(
            lambda: self.state,
            append,
            write,
            wake=self._wake.set,
            committed=committed,
            acknowledgements=self._acknowledgements,
            slurm=job_scan.slurm,
            approval=approval,
            boot_id=boot_id,
            clock=clock,
        )
        self._preview: tuple[str, ...] = ()
        self._errors: dict[str, str] = {}
        self._scanned_for: tuple[Notice, ...] = ()
        self._awaited = False
        self._early: dict[tuple[str, int, int, bool], Acknowledged] = {}  # by job, PID, rank, and if for all ranks

    # --- life

    def run(self) -> None:
        self._task = asyncio.create_task(self._go_on())

    async def stop(self) -> None:
        """Send the signals that are due by now, within STOPS_WITHIN. The ledger keeps the rest."""
        self._ending = True
        self._wake.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOPS_WITHIN):
                if self._task is not None:
                    await asyncio.shield(self._task)
                await asyncio.gather(*map(asyncio.shield, self._executor.running))
        tasks = [task for task in (self._task, *self._executor.running) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._executor.close()
        await self._job_scan.close()

    # --- the state

    def fold(self, event: Event) -> None:
        self.state = fold(self.state, event)

    @contextlib.contextmanager
    def rebuilding(self) -> Iterator[None]:
        """Rebuild the state as the fold of the events that come within."""
        self.state = EvacuationState(boot_id=self._boot_id)
        yield

    def checkpoint(self, _: Stamp) -> list[Event]:
        return events.checkpoint(self.state)

    # --- notices

    def appended(self, events: Iterable[Event]) -> None:
        """Act on a notice, or its end, at once, before any step. An output of the journal. Before `run` it does
        nothing: the first step acts.
        """
        if self._task is not None and any(event.kind in _NOTICES for event in events):
            self.follow()

    def follow(self) -> None:
        """Append the events of evacuations that begin or end, and scan at once if anything has changed."""
        now = self._clock()
        try:
            active = self._active_now(now)
            # None in mode observe: an evacuation that began in mode enforce ends now.
            notices = (*active.notices, *active.later) if self._enforce else ()
            begun = events.follow(self.state, notices, boot_id=self._boot_id, now=now)
        except Exception:  # an internal error must end neither a step nor what reads a notice
            log.exception("evacuation step failed: no new evacuation")
            return
        if active != self._active or begun:
            self._wake.set()
        self._active = active
        if begun:
            self._write(begun)

    # --- acknowledgements by the socket

    def current(self) -> Collection[str]:
        return list(open_evacuations(self.state))

    async def membership_of(self, caller: Caller) -> Membership | None:
        """Return the job of a caller. Waits until it is known: the caller sets the limit, as the job socket does."""
        if caller.pid <= 0 or caller.started is None:
            return None
        return await self._job_scan.membership_of((caller.pid, caller.started))

    def acknowledged(self, acknowledgement: Acknowledged) -> None:
        """Take an acknowledgement. A job that read the notice itself may acknowledge before it is signalled: this is
        kept until the job is known.
        """
        job_state = jobs_of(self.state).get(acknowledgement.job)
        if job_state is None:
            if len(self._early) >= EARLY_MOST:
                raise VerbError(
                    f"{acknowledgement.job} was not seen yet, and too many acknowledgements wait; try again", TRY_AGAIN
                )
            self._early[acknowledgement.job, acknowledgement.pid, acknowledgement.rank, acknowledgement.all_ranks] = (
                acknowledgement
            )
        elif is_news(
            job_state,
            acknowledgement.rank,
            (acknowledgement.pid, acknowledgement.started),
            all_ranks=acknowledgement.all_ranks,
        ):
            self._append([self._acknowledgements.by_socket(acknowledgement)])
            self._wake.set()

    def _take_early(self) -> None:
        jobs, current = jobs_of(self.state), self.current()
        for key in [key for key in self._early if key[0] in jobs]:
            if (acknowledgement := self._early.pop(key)).notice in current:  # it may have been withdrawn meanwhile
                self.acknowledged(acknowledgement)

    def settled(self) -> bool:
        """True if an end is imminent, all jobs were scanned for it, and no acknowledgement is waited for."""
        scanned = bool(self._active.notices) and self._scanned_for == self._active.notices
        return scanned and not self._executor.running and not self._awaited

    # --- what operators see

    async def signalled(self) -> str:
        """Return a summary of the jobs that were signalled for the imminent ends, or would be; empty while none is imminent.
        Takes SIGNALLED_WITHIN at most.
        """
        if not self._active.notices:
            return ""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SIGNALLED_WITHIN):
                while self._scanned_for != self._active.notices or self._executor.running:  # noqa: ASYNC110 - none of them signals it
                    await asyncio.sleep(0.02)
        if self._scanned_for != self._active.notices:
            return "the jobs here are not known yet: see gpuwarden status"
        return summary(self.state, self._preview, enforce=self._enforce)

    # --- turns

    async def _go_on(self) -> None:
        while True:
            last = self._ending  # the turn during which the stop was requested may have left a job to one more
            try:
                again = await self._turn()
            except Exception:  # an internal error must end neither this nor the daemon
                log.exception("evacuation failed unexpectedly")
                again = self._clock().boottime + AGAIN_AFTER
            if last:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if again is None else max(again - self._clock().boottime, 0.0)):
                    await self._wake.wait()

    async def _turn(self) -> float | None:
        """Make one scan and act on it. Returns when to scan again (boottime); None: when something changes."""
        self._wake.clear()
        active = self._active
        if not active.notices:
            self._early.clear()
            if self._preview or not self._tidied:
                self._errors, self._tidied = {}, True
                await self._acknowledgements.forget()
            self._preview = tuple(map(ignored, active.ignored))
            if not self._enforce or self._ending:
                return None
            await self._job_scan.warm()
            return self._clock().boottime + WARM_EVERY
        scanned = await self._job_scan.scan(lambda seen: self._signal_early(seen, active))
        self._report(scanned.error, self._no_rights(scanned.seen))
        now = self._clock()
        if (seen := scanned.seen) is None:
            return now.boottime + AGAIN_AFTER
        if not scanned.listed and self._acknowledgements.misses(self.state, seen.jobs):
            seen = replace(seen, controller=False)  # such a scan must not end a job
        if self._ending:  # no further scan follows
            seen = replace(seen, unanswered=None)
        waits, views = False, [(notice, self._view(notice, seen, active)) for notice in active.notices]
        if self._enforce:
            await self._expect(seen.jobs)
            self._append(await self._acknowledgements.news(self.state))
            again, waits = await self._carry_out(views, active)
            self._take_early()
        else:
            again = now.boottime + SCAN_IN_OBSERVE
        now = self._clock()
        self._awaited = self._enforce and any(
            awaits_jobs(self.state, notice, view, self._settings, now) for notice, view in views
        )
        lines = (preview(self.state, notice, view, self._settings, now, names=self._names) for notice, view in views)
        self._preview = (*chain.from_iterable(lines), *map(ignored, active.ignored))
        self._scanned_for = active.notices if scanned.listed and not waits else ()
        return again

    async def _signal_early(self, seen: Seen, active: ActiveNotices) -> None:
        """Signal processes that no scheduler manages at once, however long the scheduler takes to answer."""
        if self._enforce:
            await self._carry_out([(notice, self._view(notice, seen, active)) for notice in active.notices], active)

    async def _expect(self, jobs: Iterable[LocalJob]) -> None:
        """Make sure that each known job has a folder to acknowledge in: the one that an earlier daemon made, if there
        is one.
        """
        job_states = jobs_of(self.state)
        await self._acknowledgements.expect([job for job in jobs if key_of(job) in job_states])

    def _view(self, notice: Notice, seen: Seen, active: ActiveNotices) -> Seen:
        seen = replace(seen, unschedulable=active.unschedulable, closed=active.closed)
        return (
            on_gpu(seen, dict(active.processes).get(id_of(notice), frozenset())) if notice.kind == FAILING_GPU else seen
        )

    def _no_rights(self, seen: Seen | None) -> str:
        """Return why processes of other users cannot be signalled, for people; empty if they can, or there are none."""
        if not self._enforce or seen is None:
            return ""
        own = os.geteuid()
        if all(process.uid == own for job in seen.jobs for process in job.processes):
            return ""
        missing = names(lacking(FOR_SIGNALS))
        if not missing:
            return ""
        return f"no {missing}: give it to the service (termination.conf, docs/use/systemd.md), or to the pod with jobs.signal of the chart"

    def _report(self, scan: str, rights: str) -> None:
        errors = {"job scan incomplete": scan, "cannot signal processes of other users": rights}
        for problem, why in errors.items():
            if why and why != self._errors.get(problem):
                log.warning(problem, reason=why)
        self._errors = errors

    # --- steps

    async def _carry_out(self, views: Sequence[tuple[Notice, Seen]], active: ActiveNotices) -> tuple[float, bool]:
        """Carry out the plan. Returns when to scan again (boottime), and whether a job waits for the controller.

        Notices are planned one after the other: a process signalled for one is not signalled again for the next.
        """
        due: list[tuple[Notice, Step]] = []
        again, waits, signalled = [], False, set[str]()
        self._executor.settle(views[0][1])
        for notice, seen in views:
            planned = plan(self.state, notice, seen, self._settings, self._clock(), is_busy=self._executor.is_busy)
            again.append(planned.again)
            waits = waits or planned.waits
            if planned.ask_controller and self._job_scan.slurm is not None:
                self._job_scan.slurm.ask_again()
            for step in filter(self._executor.is_free, planned.steps):
                if isinstance(step, SignalJob) and step.delivery.receivers:
                    if step.key in signalled:  # already signalled for another notice of this turn
                        continue
                    signalled.add(step.key)
                self._executor.write_down(notice, step)
                due.append((notice, step))
        await self._executor.signal(due)
        if not self._ending:
            self._executor.begin(due, active.reason)
        return min(again), waits

    # --- what is published

    def shown(self) -> Evacuations:
        going_on = tuple(open_evacuations(self.state).values())
        return Evacuations(
            evacuations=going_on or tuple(self.state.evacuations.values())[-1:],
            preview=self._preview,
            outcomes=dict(self._executor.outcomes),
            answers=self.state.answers,
            signal_seconds=self._executor.signal_seconds,
            error="; ".join(f"{problem}: {why}" for problem, why in self._errors.items() if why),
        )
