"""The memory of jobs: running ones with what touched them, and the records of those that ended in the last day.

Older records are in the ledger only. A job that is not in the ledger yet, such as one in its first minute, is in
`Following` (`following.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, fields, replace
from typing import Any

from gpuwarden.features.why.kept import kept
from gpuwarden.features.why.model import NAME, Answer, End, Epoch, Record, Use, job_subject
from gpuwarden.features.why.stored import (
    NAME_MOST,
    Begun,
    Ended,
    Used,
    counters_of,
    counters_text,
    names_of,
    pids_of,
    printable,
    slots_of,
    touches_data,
    touches_of,
)
from gpuwarden.features.why.touches import RECENT_FOR, RECENT_MOST, TOUCHING, Touching, concerns, touching, with_touch
from gpuwarden.health.event_data import read, write
from gpuwarden.health.memory import State
from gpuwarden.health.model import Event, EventKind, Key
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

EPOCHS_MOST = 64
"""Most running jobs in memory. Others are stored only when they end; if the ledger has more, the oldest are dropped."""
RECORDS_MOST = 64
RECORDS_FOR = 86_400.0
"""Seconds of wall time after its end for which a record is kept here."""
KINDS = TOUCHING | {EventKind.JOB_BEGUN, EventKind.JOB_USED, EventKind.JOB_ENDED}
_USE = tuple(field.name for field in fields(Use))


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The fold of the events of jobs."""

    epochs: Mapping[str, Epoch] = field(default_factory=dict)
    """By name, the jobs that began and have no record yet."""
    records: tuple[Record, ...] = ()
    """Of jobs that ended in the last day, the newest last."""
    recent: tuple[Touching, ...] = field(default=(), compare=False)
    """Events that may have touched a job that is not among `epochs` yet. Not part of a checkpoint."""


EMPTY = Memory()


def memory_of(state: State) -> Memory:
    memory: Memory = state.features.get(NAME, EMPTY)
    return memory


def fold(memory: Memory, event: Event, state: State) -> Memory:
    """Return the memory after an event of KINDS; the same object if it changes nothing."""
    match event.kind:
        case EventKind.JOB_BEGUN:
            return _begun(memory, event)
        case EventKind.JOB_USED:
            return _used(memory, event)
        case EventKind.JOB_ENDED:
            return _ended(memory, event)
    return _touched(memory, event, state)


def _name(event: Event) -> str:
    subject = None if event.key is None else event.key.subject
    return "" if subject is None or subject.kind != "job" else printable(NAME_MOST)(subject.part)


def _begun(memory: Memory, event: Event) -> Memory:
    name = _name(event)
    if not name:
        return memory
    others = {other: epoch for other, epoch in memory.epochs.items() if other != name}
    epochs = [*others.items(), (name, _epoch(name, read(Begun, event), event.at, event.boot_id))]
    return replace(memory, epochs=dict(epochs[-EPOCHS_MOST:]))


def _used(memory: Memory, event: Event) -> Memory:
    name = _name(event)
    if (epoch := memory.epochs.get(name)) is None:
        return memory
    used = read(Used, event)
    newer = replace(
        epoch,
        slots=slots_of(used.slots) or epoch.slots,
        pids=pids_of(used.pids),
        use=_use(used),
        energy_at=counters_of(used.energy_at),
        used_at=event.at,
    )
    return replace(memory, epochs={**memory.epochs, name: newer})


def _ended(memory: Memory, event: Event) -> Memory:
    if (record := record_of(event)) is None:
        return memory
    epochs = {name: epoch for name, epoch in memory.epochs.items() if name != record.epoch.name}
    since = event.at.wall - RECORDS_FOR
    of_the_day = [record for record in memory.records if record.end.at.wall >= since]
    return replace(memory, epochs=epochs, records=kept((*of_the_day, record), RECORDS_MOST))


def _touched(memory: Memory, event: Event, state: State) -> Memory:
    if (touch := touching(event, state)) is None:
        return memory
    epochs = {
        name: newer
        for name, epoch in memory.epochs.items()
        if concerns(touch, epoch) and (newer := with_touch(epoch, touch)) is not epoch
    }
    since = event.at.boottime - RECENT_FOR
    recent = (
        *(other for other in memory.recent if other.boot_id == touch.boot_id and other.touch.at.boottime >= since),
        touch,
    )
    return replace(
        memory, epochs={**memory.epochs, **epochs} if epochs else memory.epochs, recent=recent[-RECENT_MOST:]
    )


# --- events


def begun(epoch: Epoch) -> Event:
    """Return the event that stores a running job with all that is known of it."""
    data = Begun(
        **_kept(epoch),
        **_whole(epoch),
        energy_at=counters_text(epoch.energy_at),
        used=epoch.used_at,
    )
    return Event(
        kind=EventKind.JOB_BEGUN, at=epoch.began, boot_id=epoch.boot_id, key=_key(epoch.name), data=write(data)
    )


def used(epoch: Epoch, at: Stamp, boot_id: str) -> Event:
    """Return the event that stores what a job used until `at`."""
    data = Used(**_kept(epoch), energy_at=counters_text(epoch.energy_at))
    return Event(kind=EventKind.JOB_USED, at=at, boot_id=boot_id, key=_key(epoch.name), data=write(data))


def ended(record: Record, boot_id: str, left_out: int = 0) -> Event:
    """Return the event that stores a record. `boot_id`: boot of the end."""
    epoch, end, answer = record.epoch, record.end, record.answer
    data = Ended(
        **_kept(epoch),
        **_whole(epoch),
        began=epoch.began,
        boot="" if epoch.boot_id == boot_id else epoch.boot_id,
        known_from=end.known_from,
        state=end.state,
        exit_code=end.exit_code,
        signal=end.signal,
        by=end.by,
        nodes=end.nodes,
        failed_node=end.failed_node,
        cause=answer.cause,
        certainty=answer.certainty,
        sentence=answer.sentence,
        code=answer.code,
        slot=answer.slot,
        serial=answer.serial,
        left_out=left_out,
    )
    return Event(kind=EventKind.JOB_ENDED, at=end.at, boot_id=boot_id, key=_key(epoch.name), data=write(data))


def record_of(event: Event) -> Record | None:
    """Return the record in a JOB_ENDED event; None if it names no job or no begin."""
    data, name = read(Ended, event), _name(event)
    if event.kind != EventKind.JOB_ENDED or not name or data.began is None:
        return None
    end = End(
        at=event.at,
        known_from=data.known_from,
        state=data.state,
        exit_code=data.exit_code,
        signal=data.signal,
        by=data.by,
        nodes=data.nodes,
        failed_node=data.failed_node,
    )
    answer = Answer(
        cause=data.cause,
        certainty=data.certainty,
        sentence=data.sentence,
        code=data.code,
        slot=data.slot,
        serial=data.serial,
    )
    return Record(epoch=_epoch(name, data, data.began, data.boot or event.boot_id), end=end, answer=answer)


def events(memory: Memory, _: Stamp, state: State) -> Iterator[Event]:
    """Yield the events whose fold gives this memory."""
    for record in memory.records:
        yield ended(record, state.boot_id)
    for epoch in memory.epochs.values():
        yield begun(epoch)


def _key(name: str) -> Key:
    return Key("job", job_subject(name))


def _kept(epoch: Epoch) -> dict[str, Any]:
    use = {name: getattr(epoch.use, name) for name in _USE}
    return {**use, "slots": " ".join(epoch.slots), "pids": " ".join(map(str, epoch.pids))}


def _whole(epoch: Epoch) -> dict[str, Any]:
    """Return the data of a job's begin and of its record, in addition to `_kept`."""
    return {
        "uid": epoch.uid,
        "user": epoch.user,
        "job_name": epoch.job_name,
        "also": " ".join(epoch.also),
        "touches": touches_data(epoch.touches),
    }


def _use(kept: Use) -> Use:
    return Use(**{name: getattr(kept, name) for name in _USE})


def _epoch(name: str, data: Begun, began: Stamp, boot_id: str) -> Epoch:
    return Epoch(
        name=name,
        began=began,
        boot_id=boot_id,
        uid=data.uid,
        user=data.user,
        job_name=data.job_name,
        also=names_of(data.also),
        slots=slots_of(data.slots),
        touches=touches_of(data.touches),
        use=_use(data),
        energy_at=counters_of(data.energy_at),
        used_at=data.used,
        pids=pids_of(data.pids),
    )
