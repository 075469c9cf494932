"""Follows jobs from step to step: when they begin and end, what they use, and why they ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import is_

from gpuwarden.features.why import memory as remembered
from gpuwarden.features.why.budget import Worth, taken
from gpuwarden.features.why.causes import ENDED_WELL, Around, answer
from gpuwarden.features.why.following import UNWRITTEN_MOST, Following, Live, following_of, with_following
from gpuwarden.features.why.follows import id_of, is_of_programs, with_follows
from gpuwarden.features.why.idle import JOB_IDLE, job_idle
from gpuwarden.features.why.members import Member, Members, as_requeued, members, stamp
from gpuwarden.features.why.memory import EPOCHS_MOST, Memory, memory_of
from gpuwarden.features.why.model import (
    PIDS_MOST,
    SETTLES,
    TOUCHES_MOST,
    Cause,
    End,
    Epoch,
    Record,
    Touch,
)
from gpuwarden.features.why.sentences import Board
from gpuwarden.features.why.stored import ALSO_MOST
from gpuwarden.features.why.touches import concerns, with_touch
from gpuwarden.features.why.use import Pass, meter_of, metered, written
from gpuwarden.health.detection import Detector
from gpuwarden.health.memory import State
from gpuwarden.health.model import Event, EventKind
from gpuwarden.health.view import Sight
from gpuwarden.health.xid.witnesses import contradicted
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.receivers.workloads_facts import WorkloadsFacts

BEGUN_AFTER, BEGUN_AT_LAST = 60.0, 600.0
"""Seconds after its begin from which on a job is written down, where there is room for short ones, and in any case."""
USED_EVERY = 1_800.0
"""Seconds between two notes of what a job used."""
GONE_AFTER = 20.0
"""Seconds for which no source must have a job that has ended: a reader that has only begun may not know all."""
ANOTHER_AFTER = 5.0
"""Seconds by which a job must begin later than the known one of its name to be another one."""
FORGOTTEN_AFTER = 86_400.0
"""Seconds after which a job ends of which nobody can say any more whether it runs."""
QUIET_FOR = 5.0
"""Seconds for which nothing is due where nothing was read."""
ANSWERED_WITHIN = 2 * SETTLES
"""Seconds after its end for which the scheduler is waited for, which is asked how it ended."""
LONG_OVER = 240.0
"""Seconds after its end from which on a job that this daemon has never seen running is none of its records."""


def follow(state: State, sight: Sight) -> tuple[State, tuple[Event, ...]]:
    """Return the state with what this step shows of jobs, and the events of those that began, went on or ended."""
    memory, before = memory_of(state), following_of(state)
    if not (memory.epochs or before.live or before.done) and not _may_have_jobs(sight):
        return state, ()
    sources = (memory.epochs, memory.recent, sight.nvml, sight.jobs, sight.view.jobs.facts, sight.fresh(WorkloadsFacts))
    same = len(before.sources) == len(sources) and all(map(is_, before.sources, sources))
    if same and sight.now.boottime - before.at < QUIET_FOR:
        return state, ()  # a step between two passes
    after, events = _Step(state, memory, before, sight).made()
    after = replace(after, sources=sources, at=sight.now.boottime)
    return with_following(state, after), tuple(events)


def _may_have_jobs(sight: Sight) -> bool:
    jobs, workloads = sight.jobs, sight.fresh(WorkloadsFacts)
    return bool((jobs is not None and (jobs.jobs or jobs.processes)) or (workloads is not None and workloads.workloads))


class _Step:
    """One step. `live` changes as it goes on."""

    def __init__(self, state: State, memory: Memory, before: Following, sight: Sight) -> None:
        self.state, self.memory, self.sight = state, memory, sight
        self.now, self.boot_id = sight.now, sight.view.boot_id
        self.following = before
        self.live = dict(before.live)
        self.events: list[Event] = []
        self.over: list[Record] = []

    def made(self) -> tuple[Following, list[Event]]:
        self._of_other_boots()
        adopted = self._adopted()
        known, there = self.following.members, self._members()
        for member in there.all if adopted or there is not known else ():
            self._seen(member)
        for name in self.live.keys() - there.names:
            self._missing(name, self.live[name], there)
        self._meter()
        for name, one in list(self.live.items()):
            self._written(name, one)
        done = {name: at for name, at in self.following.done.items() if name in there.names}
        return replace(self.following, live=self.live, done=done), self.events

    def _of_other_boots(self) -> None:
        """Nothing outlives a boot. It ended when this one began, at the latest."""
        for name, epoch in self.memory.epochs.items():
            if epoch.boot_id != self.boot_id:
                end = End(at=stamp(0.0, self.now), known_from="boot")
                self._end(name, Live(epoch=epoch, in_ledger=True), end)

    def _adopted(self) -> bool:
        """Go on with the jobs that an earlier life of the daemon wrote down. Returns whether there were any."""
        new = [epoch for name, epoch in self.memory.epochs.items() if name not in self.live]
        for epoch in new:
            if epoch.boot_id == self.boot_id:
                self.live[epoch.name] = Live(epoch=epoch, meter=meter_of(epoch), in_ledger=True)
        return bool(new)

    def _members(self) -> Members:
        """Return the jobs that are here: made again only if what they are made of has changed."""
        known, sight = self.following, self.sight
        facts = (sight.jobs, sight.fresh(WorkloadsFacts), sight.view.jobs.outcome)
        pids = tuple([(slot, *[process.pid for process in gpu.processes]) for slot, gpu in sight.gpus.items()])
        made_of = (pids, self.state.pins.keys())
        if known.members is not None and all(map(is_, known.facts, facts)) and known.made_of == made_of:
            return known.members
        there = members(self.state.pins, sight)
        self.following = replace(known, members=there, facts=facts, made_of=made_of)
        return there

    def _seen(self, member: Member) -> None:
        name, one = member.name, self.live.get(member.name)
        if one is not None and member.began is not None and member.began < one.epoch.began.boottime - ANOTHER_AFTER:
            return  # an earlier one of this name, which is still reported
        if one is not None and _is_another(one.epoch, member):
            at = member.began or self.now.boottime
            self._end(
                name,
                one,
                as_requeued(one.end, one.epoch, member) or End(at=stamp(at, self.now), known_from="processes"),
            )
            one = None
        if one is None:
            if not self._is_done(member):
                self.live[name] = self._begun(member)
            return
        epoch = _grown(one.epoch, member)
        end = member.end or (None if one.end is not None and one.missing is not None else one.end)
        if (
            epoch is not one.epoch
            or end != one.end
            or (one.missing, one.unknown) != (None, None)
            or not one.seen
            or one.by_slot is not member.by_slot
            or (one.oom_kills, one.is_asked) != (member.oom_kills, member.is_asked)
        ):
            self.live[name] = replace(
                one,
                epoch=epoch,
                end=end,
                missing=None,
                unknown=None,
                seen=True,
                by_slot=member.by_slot,
                oom_kills=member.oom_kills,
                is_asked=member.is_asked,
            )

    def _is_done(self, member: Member) -> bool:
        """True if it has its record, or ended before this daemon could know."""
        began = self.following.done.get(member.name)
        if began is not None:
            return member.began is None or member.began <= began + ANOTHER_AFTER
        known = [
            one for one in self.memory.records if one.epoch.name == member.name and one.epoch.boot_id == self.boot_id
        ]
        if known and not _is_another(known[-1].epoch, member):
            return member.end is not None or member.began is not None
        return member.end is not None and self.now.boottime - member.end.at.boottime > LONG_OVER

    def _begun(self, member: Member) -> Live:
        began = self.now.boottime if member.began is None else min(member.began, self.now.boottime)
        epoch = Epoch(
            name=member.name,
            began=stamp(began, self.now),
            boot_id=self.boot_id,
            uid=member.uid,
            user=member.user,
            job_name=member.job_name,
            slots=member.slots,
            also=member.also,
            pids=_pids((), member),
        )
        return Live(
            epoch=epoch,
            by_slot=member.by_slot,
            oom_kills=member.oom_kills,
            seen=True,
            end=member.end,
            is_asked=member.is_asked,
        )

    def _missing(self, name: str, one: Live, there: Members) -> None:
        """Take in that no source has a job any more, or that none can say so."""
        now = self.now.boottime
        if one.end is not None and one.missing is None:
            return  # its source said so, and has forgotten it
        if one.epoch.kind not in there.known:
            since = now if one.unknown is None else one.unknown
            forgotten = (
                End(at=stamp(since, self.now), known_from="restart") if now - since >= FORGOTTEN_AFTER else one.end
            )
            if one.unknown is None or forgotten is not one.end:
                self.live[name] = replace(one, unknown=since, end=forgotten)
            return
        since = now if one.missing is None else one.missing
        is_gone = one.end is None and now - since >= GONE_AFTER
        source = "cgroup" if one.seen and one.unknown is None else "restart"
        end = End(at=stamp(since, self.now), known_from=source) if is_gone else one.end
        if one.missing is None or end is not one.end:
            self.live[name] = replace(one, missing=since, end=end)

    def _meter(self) -> None:
        at = self.sight.view.nvml.at
        if self.sight.nvml is None or at is None or at.boottime <= self.following.metered:
            return
        gpus = {facts.slot: facts for facts in self.sight.answering}
        dcgm = self.sight.dcgm
        tensor = (
            {}
            if dcgm is None
            else {
                gpu.slot: 100.0 * gpu.readings.tensor_active
                for gpu in dcgm.gpus
                if gpu.slot and gpu.readings.tensor_active is not None
            }
        )
        read = Pass(at.boottime, gpus, tensor)
        for name, one in self.live.items():
            if one.end is None and one.missing is None and one.unknown is None:
                with_process = [slot for slot, pids in one.by_slot.items() if pids]
                self.live[name] = one.metered(metered(one.meter, one.epoch, read, with_process))
        self.following = replace(self.following, metered=at.boottime)

    def _written(self, name: str, one: Live) -> None:
        """Write down what is due of one job."""
        now = self.now.boottime
        if one.end is not None:
            if now - one.end.at.boottime >= (ANSWERED_WITHIN if one.is_asked else SETTLES):
                self._end(name, one, one.end)
        elif not one.in_ledger:
            if self._has_room() and self._is_worth_begin(one, now - one.epoch.began.boottime):
                epoch = self._touched(written(one.epoch, one.meter, self.now))
                self.events.append(remembered.begun(epoch))
                self.live[name] = replace(one, epoch=replace(epoch, touches=()), in_ledger=True)
        elif (known := self.memory.epochs.get(name)) is not None:
            since = (known.used_at or known.began).boottime
            if now - since >= USED_EVERY or known.slots != one.epoch.slots:
                epoch = written(one.epoch, one.meter, self.now)
                self.events.append(remembered.used(epoch, epoch.used_at or self.now, self.boot_id))
                self.live[name] = replace(one, epoch=epoch)
        else:  # more jobs than memory takes
            self.live[name] = replace(one, in_ledger=False)

    def _has_room(self) -> bool:
        """True if memory takes one more. Another would push out the oldest, which would be written down again, and so on without end."""
        return len(self.memory.epochs) + sum(event.kind == EventKind.JOB_BEGUN for event in self.events) < EPOCHS_MOST

    def _is_worth_begin(self, one: Live, age: float) -> bool:
        if any(concerns(touch, one.epoch) for touch in self.memory.recent):
            worth = Worth.TOUCHED
        elif age >= BEGUN_AFTER:
            worth = Worth.BEGUN
        else:
            return False
        return age >= BEGUN_AT_LAST or self._may_write(worth, events=2)  # and that of its end

    def _may_write(self, worth: Worth, events: int = 1) -> bool:
        budget, granted = taken(self.following.budget, worth, self.now.boottime, events)
        self.following = replace(self.following, budget=budget)
        return granted

    def _touched(self, epoch: Epoch) -> Epoch:
        """Return a job that is not in the ledger with what touched it."""
        for touch in self.memory.recent:
            if concerns(touch, epoch):
                epoch = with_touch(epoch, touch)
        return epoch

    # --- its end

    def _end(self, name: str, one: Live, end: End) -> None:
        self.live.pop(name, None)
        record = self._record(name, one, end)
        self.over.append(record)
        self.following = replace(self.following, done={**self.following.done, name: record.epoch.began.boottime})
        if one.in_ledger or self._may_write(_worth(record)):
            self.events.append(remembered.ended(record, self.boot_id, self.following.unreported))
            self.following = replace(self.following, unreported=0)
            return
        known = self.following
        unwritten = (*known.unwritten, record)[-UNWRITTEN_MOST:]
        self.following = replace(
            known, unwritten=unwritten, left_out=known.left_out + 1, unreported=known.unreported + 1
        )

    def _record(self, name: str, one: Live, end: End) -> Record:
        known = self.memory.epochs.get(name) if one.in_ledger else None
        epoch = written(one.epoch, one.meter, self.now) if one.meter.last else one.epoch
        epoch = self._touched(epoch) if known is None else replace(epoch, touches=known.touches)
        if one.oom_kills and not any(touch.what.startswith("oom_") for touch in epoch.touches):
            counted = Touch(what="oom_count", at=end.at, count=one.oom_kills)
            epoch = replace(epoch, touches=(*epoch.touches, counted)[-TOUCHES_MOST:])
        others = [other for other in self.live.values() if other.epoch.name != name]
        kept = [
            touch
            for touch in epoch.touches
            if end.known_from == "boot"
            or touch.at.boottime <= end.at.boottime
            or not _taken_over(touch.slot, touch.at, others)
        ]
        kept += self._suspected(kept)
        follows = {str(key): str(cause) for key, (cause, _) in self.state.moments.follows.items()}
        touches = with_follows(kept, follows)[:TOUCHES_MOST]
        epoch = replace(epoch, touches=touches)
        around = Around(
            boards=self._boards(epoch.slots),
            pids={pid for other in (*(one.epoch for one in others), *self._beside(epoch)) for pid in other.pids}
            - {*epoch.pids},
            denied={
                str(key)
                for key, track in self.state.tracks.items()
                if track.raised and key.code == "xid" and contradicted(self.state, key)
            },
        )
        return Record(epoch=epoch, end=end, answer=answer(epoch, end, around))

    def _suspected(self, touches: Sequence[Touch]) -> list[Touch]:
        """Return the findings from before the job that its Xids repeat: the same error at the same place, of other jobs."""
        known = {touch.detail for touch in touches}
        found = {id_of(touch): touch for touch in touches if touch.what == "xid"}
        raised = {str(key) for key, track in self.state.tracks.items() if track.raised and key.code == "xid"}
        suspected = [one for name, one in found.items() if name in raised - known and is_of_programs(one)]
        return [
            replace(touch, what="finding", detail=id_of(touch), pid=None, count=1, until=None) for touch in suspected
        ]

    def _beside(self, epoch: Epoch) -> list[Epoch]:
        """Return the jobs that have their record already, and ended after the begin of this one."""
        known = (*self.memory.records, *self.following.unwritten, *self.over)
        return [r.epoch for r in known if r.end.at.wall >= epoch.began.wall and r.epoch.name != epoch.name]

    def _boards(self, slots: Sequence[str]) -> Mapping[str, Board]:
        facts = self.sight.view.nvml.facts
        indices = {} if facts is None else {gpu.slot: gpu.index for gpu in facts.gpus}
        pins = self.state.pins
        return {slot: Board(indices.get(slot), pins[slot].serial if slot in pins else "") for slot in slots}


def _is_another(epoch: Epoch, member: Member) -> bool:
    """Return True if it began later than the known one of its name. A reader that has begun anew may miss the first processes of a job."""
    if member.began is None or member.began <= epoch.began.boottime + ANOTHER_AFTER:
        return False
    return not any(pid in epoch.pids for pids in member.by_slot.values() for pid in pids)


def _grown(epoch: Epoch, member: Member) -> Epoch:
    """Return the job with what its source has found since. Its GPUs only become more."""
    slots = epoch.slots if set(member.slots) <= set(epoch.slots) else tuple(sorted({*epoch.slots, *member.slots}))
    uid = member.uid if epoch.uid is None else epoch.uid
    user, job_name, pids = epoch.user or member.user, epoch.job_name or member.job_name, _pids(epoch.pids, member)
    also = (
        epoch.also
        if set(member.also) <= set(epoch.also)
        else tuple(dict.fromkeys((*epoch.also, *member.also)))[:ALSO_MOST]
    )
    known = (epoch.slots, epoch.uid, epoch.user, epoch.job_name, epoch.pids, epoch.also)
    if (slots, uid, user, job_name, pids, also) == known:
        return epoch
    return replace(epoch, slots=slots, uid=uid, user=user, job_name=job_name, pids=pids, also=also)


def _pids(known: tuple[int, ...], member: Member) -> tuple[int, ...]:
    new = {pid for pids in member.by_slot.values() for pid in pids} - set(known)
    return (*known, *sorted(new))[-PIDS_MOST:] if new else known


def _taken_over(slot: str, at: Stamp, others: Sequence[Live]) -> bool:
    """True if another job had the GPU by then."""
    return slot != "" and any(slot in one.epoch.slots and one.epoch.began.boottime <= at.boottime for one in others)


def _worth(record: Record) -> Worth:
    if any(touch.what != "excluded" for touch in record.epoch.touches):
        return Worth.TOUCHED
    end = record.end
    failed = end.state not in ENDED_WELL or end.exit_code or end.signal
    return Worth.FAILED if failed and record.answer.cause is not Cause.NONE else Worth.WELL


DETECTORS: dict[str, Detector] = {JOB_IDLE: job_idle}
