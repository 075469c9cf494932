"""One step of following jobs: finds those that are new, continue, or are gone. Pure.

A job whose facts raise an error is no longer followed, and is reported by name. No other job loses its record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from operator import is_
from typing import TypeVar

from gpuwarden.features.why.ending import recorded
from gpuwarden.features.why.epochs import ANOTHER_AFTER, NOTED_AFTER, begun, is_another, is_later
from gpuwarden.features.why.following import Following, Live, following_of
from gpuwarden.features.why.members import Member, Members, end_before, members, slurm_name, stamp
from gpuwarden.features.why.memory import memory_of
from gpuwarden.features.why.model import NAME, SETTLES, End, Epoch, JobKind, Record
from gpuwarden.features.why.presence import missing, seen
from gpuwarden.features.why.use import Pass, meter_of, metered
from gpuwarden.features.why.writing import Writing
from gpuwarden.health.memory import State, with_error
from gpuwarden.health.view import Sight
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.receivers.workloads_facts import WorkloadsFacts
from gpuwarden_collectors.slurm.jobs_facts import Job

ANSWERED_WITHIN = 2 * SETTLES
"""Seconds after its end to wait for the scheduler's answer about how it ended."""
LONG_OVER = 240.0
"""Seconds after its end beyond which a job that this daemon never saw running gets no record."""
NAMED_MOST = 8
"""Most errors that name a job. Each is reported until the daemon starts again."""

Item = TypeVar("Item")


class Step:
    """Computes one step. `live`, `dropped` and `state` change meanwhile."""

    def __init__(self, state: State, sight: Sight) -> None:
        self.state, self.sight = state, sight
        self.now, self.boot_id = sight.now, sight.view.boot_id
        self.memory, self.following = memory_of(state), following_of(state)
        self.live, self.dropped = dict(self.following.live), self.following.dropped
        self.done = dict(self.following.done)
        self.writing = Writing(self.memory, self.following, self.now, self.boot_id)
        self.over: list[Record] = []

    def made(self) -> Following:
        """Return the state of jobs after this step. The events to write are in `writing`."""
        for epoch in self.memory.epochs.values():
            if epoch.boot_id != self.boot_id:
                self._of_one(epoch.name, self._rebooted, epoch)
        is_adopted = self._adopted()
        before, there = self.following.members, self._members()
        if is_adopted or there is not before:
            for name, error in there.errors.items():
                self._drop(name, error)
            for member in there.all:
                self._of_one(member.name, self._seen, member)
        for name in self.live.keys() - there.names:
            self._of_one(name, self._missing, there)
        self._meter()
        for name in list(self.live):
            self._of_one(name, self._written, self.now)
        return replace(
            self.writing.after(self.following),
            live=self.live,
            done={name: at for name, at in self.done.items() if name in there.names},
            dropped=self.dropped & {*there.names, *self.memory.epochs},
        )

    def _of_one(self, name: str, work: Callable[[str, Item], None], item: Item) -> None:
        """Do the work for one job. An error drops only this job."""
        if name in self.dropped:
            return
        try:
            work(name, item)
        except Exception as error:  # noqa: BLE001 - whatever it is, the records of all other jobs go on
            self._drop(name, error)

    def _drop(self, name: str, error: Exception) -> None:
        """Stop following a job until no source reports it any more."""
        if name in self.dropped:
            return
        self.dropped |= {name}
        job = self.live.pop(name, None)
        also = () if job is None else job.epoch.also
        if len(self.state.broken) < NAMED_MOST:
            self.state = with_error(self.state, f"{NAME}: {_shown(name, also)} is no longer followed", error)

    def _rebooted(self, name: str, epoch: Epoch) -> None:
        """End a job of an earlier boot, which no process outlives: it ended when this boot began, at the latest."""
        end = End(at=stamp(0.0, self.now), known_from="boot")
        self._end(name, Live(epoch=epoch, in_ledger=True), end)

    def _adopted(self) -> bool:
        """Continue the jobs that an earlier daemon has stored. Returns whether there were any."""
        new = [epoch for name, epoch in self.memory.epochs.items() if name not in self.live]
        for epoch in new:
            if epoch.boot_id == self.boot_id:
                self._of_one(epoch.name, self._adopt, epoch)
        return bool(new)

    def _adopt(self, name: str, epoch: Epoch) -> None:
        self.live[name] = Live(epoch=epoch, meter=meter_of(epoch), in_ledger=True)

    def _members(self) -> Members:
        """Return the jobs that are here, computed again only if the input has changed."""
        following, sight = self.following, self.sight
        facts = (sight.jobs, sight.fresh(WorkloadsFacts), sight.view.jobs.outcome)
        pids = tuple([(slot, *[process.pid for process in gpu.processes]) for slot, gpu in sight.gpus.items()])
        made_of = (pids, self.state.pins.keys())
        if following.members is not None and all(map(is_, following.facts, facts)) and following.made_of == made_of:
            return following.members
        jobs = () if sight.jobs is None else sight.jobs.jobs
        over = frozenset(job.id for job in jobs if job.ended is not None and self._has_record(job))
        there = members(self.state.pins, sight, over)
        self.following = replace(following, members=there, facts=facts, made_of=made_of)
        return there

    def _has_record(self, job: Job) -> bool:
        """Return True for a Slurm job that has its record: if many short jobs end, nearly all have."""
        began = self.done.get(slurm_name(job.id))
        return began is not None and job.started is not None and job.started <= began + NOTED_AFTER

    def _seen(self, name: str, member: Member) -> None:
        job = self.live.get(name)
        if job is not None and member.began is not None and member.began < job.epoch.began.boottime - ANOTHER_AFTER:
            return  # an earlier one of this name, which is still reported
        if job is not None and is_another(job.epoch, member, has_ended=job.end is not None):
            self._end(name, job, end_before(job.end, job.epoch, member, self.now))
            job = None
        if job is None:
            if not self._is_done(member):
                self.live[name] = begun(member, self.now, self.boot_id)
            return
        self.live[name] = seen(job, member)

    def _is_done(self, member: Member) -> bool:
        """Return True if it has its record, or ended before this daemon could see it."""
        began = self.done.get(member.name)
        if began is not None:
            return not is_later(began, member)
        records = [
            record
            for record in self.memory.records
            if record.epoch.name == member.name and record.epoch.boot_id == self.boot_id
        ]
        if records and not is_another(records[-1].epoch, member, has_ended=True):
            return member.end is not None or member.began is not None
        return member.end is not None and self.now.boottime - member.end.at.boottime > LONG_OVER

    def _missing(self, name: str, there: Members) -> None:
        self.live[name] = missing(self.live[name], there, self.now)

    def _meter(self) -> None:
        """Add the readings of a new pass over the GPUs to each job."""
        at = self.sight.view.nvml.at
        if self.sight.nvml is None or at is None or at.boottime <= self.following.metered:
            return
        gpus = {facts.slot: facts for facts in self.sight.answering}
        of_dcgm = () if self.sight.dcgm is None else self.sight.dcgm.gpus
        active = {gpu.slot: gpu.readings.tensor_active for gpu in of_dcgm if gpu.slot}
        tensor = {slot: 100.0 * share for slot, share in active.items() if share is not None}
        read = Pass(at.boottime, gpus, tensor)
        for name in list(self.live):
            self._of_one(name, self._metered, read)
        self.following = replace(self.following, metered=at.boottime)

    def _metered(self, name: str, read: Pass) -> None:
        job = self.live[name]
        if job.end is None and job.missing is None and job.unknown is None:
            with_process = [slot for slot, pids in job.by_slot.items() if pids]
            self.live[name] = job.metered(metered(job.meter, job.epoch, read, with_process))

    def _written(self, name: str, now: Stamp) -> None:
        """Write what is due for one job."""
        job = self.live[name]
        if job.end is None:
            self.live[name] = self.writing.due(job)
        elif self.following.waits_for_log(now.boottime, read=self.sight.view.log_read):
            return
        elif now.boottime - job.end.at.boottime >= (ANSWERED_WITHIN if job.is_asked else SETTLES):
            self._end(name, job, job.end)

    def _end(self, name: str, job: Live, end: End) -> None:
        self.live.pop(name, None)
        before = (*self.memory.records, *self.following.unwritten, *self.over)
        record = recorded(job, end, self.state, self.sight, others=[*self.live.values()], before=before)
        self.over.append(record)
        self.done[name] = record.epoch.began.boottime
        self.writing.ended(record, in_ledger=job.in_ledger)


def _shown(name: str, also: Iterable[str]) -> str:
    """Return the name of a job for everyone who can connect: for a pod only its UID."""
    pod = f"{JobKind.POD}/"
    return next((alias for alias in also if alias.startswith(pod)), "a pod") if name.startswith(pod) else name
