"""Writes the job events of one step: begins, use and records, as far as the budget allows. Pure."""

from __future__ import annotations

from dataclasses import replace

from gpuwarden.features.why import memory as remembered
from gpuwarden.features.why.budget import Worth, taken
from gpuwarden.features.why.causes import ENDED_WELL
from gpuwarden.features.why.following import UNWRITTEN_MOST, Following, Live
from gpuwarden.features.why.kept import kept
from gpuwarden.features.why.memory import EPOCHS_MOST, Memory
from gpuwarden.features.why.model import Cause, Epoch, JobKind, Record
from gpuwarden.features.why.touches import EXCLUSIONS, concerns, touched
from gpuwarden.features.why.use import written
from gpuwarden.health.model import Event
from gpuwarden_collectors.facts import Stamp

BEGUN_AFTER, BEGUN_AT_LAST = 60.0, 600.0
"""Seconds after its begin from which a job is stored before new ones, and in any case."""
SESSIONS_MOST = EPOCHS_MOST // 2
"""Most sessions of one user that are stored before their end, since a user can begin any number."""
USED_EVERY = 1_800.0
"""Seconds between two events of what a job used."""


class Writing:
    """Collects the events of a step in `events`."""

    def __init__(self, memory: Memory, following: Following, now: Stamp, boot_id: str) -> None:
        self._memory, self._now, self._boot_id = memory, now, boot_id
        self._budget = following.budget
        self._unwritten = following.unwritten
        self._left_out, self._unreported = following.left_out, following.unreported
        self._epochs = [*memory.epochs.values()]
        self.events: list[Event] = []

    def after(self, following: Following) -> Following:
        """Return `following` with what these events leave of the budget."""
        return replace(
            following,
            budget=self._budget,
            unwritten=self._unwritten,
            left_out=self._left_out,
            unreported=self._unreported,
        )

    def due(self, live: Live) -> Live:
        """Write what is due for a job that continues. Returns the job after that."""
        if not live.in_ledger:
            return self._begun(live) if self._has_room(live.epoch) and self._is_worth_begin(live) else live
        in_memory = self._memory.epochs.get(live.epoch.name)
        if in_memory is None:  # more jobs than memory takes
            return replace(live, in_ledger=False)
        since = (in_memory.used_at or in_memory.began).boottime
        if self._now.boottime - since < USED_EVERY and in_memory.slots == live.epoch.slots:
            return live
        epoch = written(live.epoch, live.meter, self._now)
        self.events.append(remembered.used(epoch, epoch.used_at or self._now, self._boot_id))
        return replace(live, epoch=epoch)

    def _begun(self, live: Live) -> Live:
        epoch = touched(written(live.epoch, live.meter, self._now), self._memory.recent)
        self.events.append(remembered.begun(epoch))
        self._epochs.append(epoch)
        return replace(live, epoch=replace(epoch, touches=()), in_ledger=True)

    def ended(self, record: Record, *, in_ledger: bool) -> None:
        """Write a record, if the budget allows it, or if the begin of the job was stored (`in_ledger`)."""
        if in_ledger or self._may_write(_worth(record)):
            self.events.append(remembered.ended(record, self._boot_id, self._unreported))
            self._unreported = 0
            return
        self._unwritten = kept((*self._unwritten, record), UNWRITTEN_MOST)
        self._left_out += 1
        self._unreported += 1

    def _has_room(self, epoch: Epoch) -> bool:
        """Return True if memory has room. Otherwise the oldest would be pushed out, and stored again, without end."""
        if len(self._epochs) >= EPOCHS_MOST:
            return False
        own = [other for other in self._epochs if other.kind == epoch.kind and other.uid == epoch.uid]
        return epoch.kind != JobKind.SESSION or len(own) < SESSIONS_MOST

    def _is_worth_begin(self, live: Live) -> bool:
        age = self._now.boottime - live.epoch.began.boottime
        if any(concerns(touch, live.epoch) for touch in self._memory.recent):
            worth = Worth.TOUCHED
        else:
            worth = Worth.BEGUN if age >= BEGUN_AFTER else Worth.NEW
        return age >= BEGUN_AT_LAST or self._may_write(worth, events=2)  # including the event of its end

    def _may_write(self, worth: Worth, events: int = 1) -> bool:
        self._budget, granted = taken(self._budget, worth, self._now.boottime, events)
        return granted


def _worth(record: Record) -> Worth:
    if any(touch.what not in EXCLUSIONS for touch in record.epoch.touches):
        return Worth.TOUCHED
    end = record.end
    failed = end.state not in ENDED_WELL or end.exit_code or end.signal
    return Worth.FAILED if failed and record.answer.cause is not Cause.NONE else Worth.WELL
