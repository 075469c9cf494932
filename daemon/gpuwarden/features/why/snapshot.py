"""The published state of jobs: a part of the snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from gpuwarden.features.why.ending import denied
from gpuwarden.features.why.following import Live, following_of
from gpuwarden.features.why.kept import kept
from gpuwarden.features.why.memory import RECORDS_FOR, RECORDS_MOST, memory_of
from gpuwarden.features.why.model import NAME, End, Epoch, Record
from gpuwarden.features.why.use import use_of
from gpuwarden.health.state import State
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The jobs that have GPUs of this node, and those that had."""

    running: tuple[Epoch, ...] = ()
    """In the order in which they began, with what touched them and what they used until now."""
    ends: Mapping[str, End] = field(default_factory=dict)
    """By name, the end of each job of `running` that has ended and has no record yet."""
    ended: tuple[Record, ...] = ()
    """Of the last day, at most `RECORDS_MOST` (`kept.py`), the newest last. Older ones are in the ledger."""
    denied: frozenset[str] = frozenset()
    """Ids of findings that other readings contradict."""
    left_out: int = 0
    """Short jobs since the daemon started without a record in the ledger: they ended well, or were too many."""


NOTHING = Shown()


def shown(state: State, now: Stamp) -> Shown:
    """Return what is published of the judge's memory."""
    memory, following = memory_of(state), following_of(state)
    if not (memory.epochs or memory.records or following.live or following.left_out):
        return NOTHING
    live = {name: _until_now(job, memory.epochs.get(name), following.metered) for name, job in following.live.items()}
    running = sorted(({**memory.epochs, **live}).values(), key=lambda epoch: epoch.began.wall)
    ended = sorted((*memory.records, *following.unwritten), key=lambda record: record.end.at.wall)
    since = now.wall - RECORDS_FOR
    newest = kept((record for record in ended if record.end.at.wall >= since), RECORDS_MOST)
    ends = {name: job.end for name, job in following.live.items() if job.end is not None}
    return Shown(running=tuple(running), ends=ends, ended=newest, denied=denied(state), left_out=following.left_out)


def _until_now(job: Live, kept_epoch: Epoch | None, metered: float) -> Epoch:
    touches = job.epoch.touches if kept_epoch is None else kept_epoch.touches
    use = use_of(job.meter, job.epoch, metered) if job.meter.last else job.epoch.use
    return replace(job.epoch, touches=touches, use=use)


def of(snapshot: Snapshot) -> Shown:
    """Return the part of jobs in a snapshot."""
    shown: Shown = snapshot.features.get(NAME, NOTHING)
    return shown
