"""Makes the record of a job that has ended: what touched it, and why it ended. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gpuwarden.features.why.causes import ALONE, ENDED_WELL, SCHEDULED, WHOLE, Around, answer
from gpuwarden.features.why.following import Live
from gpuwarden.features.why.follows import id_of, is_of_programs, with_follows, xid_number
from gpuwarden.features.why.memory import memory_of
from gpuwarden.features.why.model import TOUCHES_MOST, WORKING_FABRIC, End, Epoch, Record, Touch
from gpuwarden.features.why.sentences import Board
from gpuwarden.features.why.signs import LATE, STANDING, WITHIN
from gpuwarden.features.why.stored import NAME_MOST
from gpuwarden.features.why.touches import touched, with_room
from gpuwarden.features.why.use import written
from gpuwarden.health.memory import State
from gpuwarden.health.view import Sight
from gpuwarden.health.xid.bursts import OF_A_DAY
from gpuwarden.health.xid.catalogue import XidClass, xid_row
from gpuwarden.health.xid.witnesses import contradicted
from gpuwarden_collectors.facts import Stamp


def recorded(
    job: Live, end: End, state: State, sight: Sight, *, others: Sequence[Live], before: Sequence[Record]
) -> Record:
    """Return the record of a job. `others`: the jobs that still run; `before`: the records so far."""
    epoch = _whole(job, end, state, sight.now)
    touches = [touch for touch in epoch.touches if _is_its_own(touch, epoch, end, others)]
    if any(_came_first(touch, epoch) for touch in touches):
        ends = [(other.epoch, other.end) for other in others if other.end is not None]
        ends += [(record.epoch, record.end) for record in before]
        touches = [touch for touch in touches if not _is_of_the_one_before(touch, epoch, ends)]
    own, suspected = tuple(touches), _suspected(touches, state)
    standing = _standing(epoch, end, state)
    if standing and len(own) >= TOUCHES_MOST:
        own = with_room(own, standing[0])
    # There may be one for each GPU, and what ends a job comes last: it must not be cut off.
    room = max(TOUCHES_MOST - len(own) - len(suspected), 1)
    touches = [*standing[:room], *own, *suspected]
    follows = {str(key): str(cause) for key, (cause, _) in state.moments.follows.items()}
    epoch = replace(epoch, touches=with_follows(touches, follows)[:TOUCHES_MOST])
    around = ALONE
    if touches:  # most short jobs end untouched
        around = Around(
            boards=_boards(epoch.slots, state, sight),
            pids=pids_of_others(epoch, (other.epoch for other in others), before),
            denied=denied(state),
        )
    return Record(epoch=epoch, end=end, answer=answer(epoch, end, around))


def pids_of_others(epoch: Epoch, running: Iterable[Epoch], ended: Iterable[Record]) -> frozenset[int]:
    """Return the processes of jobs that were here at the same time, or so shortly before that they are still reported."""
    beside = (record.epoch for record in ended if record.end.at.wall + LATE >= epoch.began.wall)
    others = (other for other in (*running, *beside) if other.name != epoch.name)
    return frozenset(pid for other in others for pid in other.pids) - {*epoch.pids}


def denied(state: State) -> frozenset[str]:
    """Return the ids of the findings that other readings contradict."""
    return frozenset(str(key) for key, track in state.tracks.items() if track.raised and contradicted(state, key))


def _whole(job: Live, end: End, state: State, now: Stamp) -> Epoch:
    """Return the epoch with its use and all that touched it."""
    memory = memory_of(state)
    kept_epoch = memory.epochs.get(job.epoch.name) if job.in_ledger else None
    epoch = written(job.epoch, job.meter, now) if job.meter.last else job.epoch
    epoch = touched(epoch, memory.recent) if kept_epoch is None else replace(epoch, touches=kept_epoch.touches)
    if not job.oom_kills or any(touch.what.startswith("oom_") for touch in epoch.touches):
        return epoch
    counted = Touch(what="oom_count", at=end.at, count=job.oom_kills)
    return replace(epoch, touches=(*epoch.touches, counted)[-TOUCHES_MOST:])


def _is_its_own(touch: Touch, epoch: Epoch, end: End, others: Sequence[Live]) -> bool:
    """Return False for a touch after its end on a GPU that another job had by then, unless it names its process."""
    if end.known_from == "boot" or touch.at.boottime < end.at.boottime + WHOLE or touch.slot == "":
        return True
    if touch.pid is not None and touch.pid in epoch.pids:
        return True
    return not any(touch.slot in other.epoch.slots and _is_there(other, touch.at.boottime) for other in others)


def _is_there(job: Live, at: float) -> bool:
    return job.epoch.began.boottime <= at and (job.end is None or at < job.end.at.boottime + WHOLE)


def _came_first(touch: Touch, epoch: Epoch) -> bool:
    """Return True for an Xid of a working GPU in the second of its begin, in which its processes had no GPU yet."""
    number = xid_number(touch)
    if number is None or touch.pid in epoch.pids or touch.at.boottime >= epoch.began.boottime + WHOLE:
        return False
    return xid_row(number).klass is not XidClass.FAILURE


def _is_of_the_one_before(touch: Touch, epoch: Epoch, ends: Iterable[tuple[Epoch, End]]) -> bool:
    """Return True if it came first, and another job on its GPU ended in that second."""
    return _came_first(touch, epoch) and any(
        touch.slot in other.slots and end.at.boottime <= touch.at.boottime < end.at.boottime + WHOLE
        for other, end in ends
    )


def _suspected(touches: Sequence[Touch], state: State) -> list[Touch]:
    """Return findings from before the job that its Xids repeat: other jobs had the same error at the same place."""
    details = {touch.detail for touch in touches}
    tracks = ((key, track) for key, track in state.tracks.items() if key.code == "xid" and track.raised)
    repeats = {str(key) for key, track in tracks if OF_A_DAY in track.evidence}
    xids = {id_of(touch): touch for touch in touches if touch.what == "xid"}
    suspected = [process for name, process in xids.items() if name in repeats - details and is_of_programs(process)]
    return [replace(touch, what="finding", detail=id_of(touch), pid=None, count=1, until=None) for touch in suspected]


def _standing(epoch: Epoch, end: End, state: State) -> list[Touch]:
    """Return findings from before a short job that failed, which still hold, and with which its GPUs do not work."""
    is_short = end.at.wall - epoch.began.wall <= WITHIN and end.known_from != "boot"
    has_failed = end.exit_code or end.signal or end.state not in ENDED_WELL
    if not is_short or not has_failed or (end.state in SCHEDULED and not end.by_itself):
        return []
    where = epoch.slots if epoch.pids else ("", *epoch.slots)  # a job that opened a GPU had a driver
    return [
        Touch(what="standing", detail=str(key)[:NAME_MOST], at=epoch.began, slot=key.subject.slot)
        for key, track in state.tracks.items()
        if key.code in STANDING and track.raised and not track.latched and track.first_seen.wall < epoch.began.wall
        if f"{key.code}.{key.detail}" not in WORKING_FABRIC
        if key.subject.slot in where
    ]


def _boards(slots: Sequence[str], state: State, sight: Sight) -> Mapping[str, Board]:
    facts, pins = sight.view.nvml.facts, state.pins
    indices = {} if facts is None else {gpu.slot: gpu.index for gpu in facts.gpus}
    return {slot: Board(indices.get(slot), pins[slot].serial if slot in pins else "") for slot in slots}
