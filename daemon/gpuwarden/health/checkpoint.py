"""The shortest list of events whose fold gives a state. The ledger keeps it so that old events can be pruned.

A checkpoint needs no separate format, since it consists of events. Folding the checkpoint and then the later events
gives the same state as folding all events (the tests check this).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from gpuwarden.health.event_data import write
from gpuwarden.health.events import HealthSet, LinesKept, Raised, RaisedAt, Reset, Treated
from gpuwarden.health.gpu.remaps import remap_events
from gpuwarden.health.host.memory import host_events
from gpuwarden.health.host.port_downs import down_events
from gpuwarden.health.kernel_lines.records import LINE_CODES
from gpuwarden.health.model import NODE, Event, EventKind, Key, Latch, Subject, gpu
from gpuwarden.health.nvlink.link_counters import link_events
from gpuwarden.health.state import MEMORIES, Record, State, Track, pin_event
from gpuwarden.health.xid import sxid_ports
from gpuwarden.health.xid.bursts import as_text
from gpuwarden_collectors.facts import Stamp

_KIND = {"xid": EventKind.XID, "sxid": EventKind.SXID, "pcie_aer_fatal": EventKind.AER} | dict.fromkeys(
    LINE_CODES, EventKind.KERNEL_LINE
)


Call = Callable[[str, Callable[[], list[Event]]], list[Event]]
"""Calls the function for a feature, whose name is first."""


def checkpoint(state: State, now: Stamp, call: Call = lambda _, function: function()) -> list[Event]:
    """Return events that build `state` from an empty one, except windows and pairing, which span an hour at most."""
    boot = state.boot_id
    released = [track for track in state.tracks.values() if track.released is not None and track.raised]
    others = [track for track in state.tracks.values() if track not in released]
    return [
        *(_given_up(slot, now, boot) for slot in sorted(state.given_up)),
        *(event for record in state.records.values() for event in _record(record)),
        *(event for track in released for event in _track(track, boot)),  # the boot that follows releases them again
        Event(kind=EventKind.BOOT, at=state.booted or now, boot_id=boot),
        Event(kind=EventKind.HEALTH, at=now, boot_id=boot, data=write(HealthSet(to=state.health))),
        *(pin_event(EventKind.GPU_PINNED, pin.first_seen, boot, pin) for pin in state.pins.values()),
        *host_events(state.host, now, boot),
        *(event for name in MEMORIES for event in call(name, partial(_of_feature, name, now, state))),
        *down_events(state.port_downs, now, boot),
        *remap_events(state.remaps, now, boot),
        *link_events(state.links, now, boot),
        *(_reset(slot, at, boot) for slot, at in state.resets.items()),
        *(event for track in others for event in _track(track, boot)),  # after the resets, which are older
        *_counts(state, now),  # last, since folding the events above changes the counts
    ]


def _of_feature(name: str, now: Stamp, state: State) -> list[Event]:
    memory = MEMORIES[name]
    return list(memory.events(state.features.get(name, memory.EMPTY), now, state))


def _given_up(slot: str, now: Stamp, boot: str) -> Event:
    return Event(kind=EventKind.GPU_UNPINNED, at=now, boot_id=boot, key=Key("gpu", gpu(slot)))


def _record(record: Record) -> Iterator[Event]:
    of_switch = record.key.code == "sxid"
    data = LinesKept(
        count=record.count,
        text=record.text,
        history=record.history,
        fatal=record.fatal,
        bursts=as_text(record.bursts),
        sequence=record.sequence,
        nonfatal=record.nonfatal if of_switch else None,
        ports=sxid_ports.as_text(record.ports) if of_switch else None,
        nvml=record.nvml,
    )
    yield Event(kind=_KIND[record.key.code], at=record.last, boot_id=record.boot_id, key=record.key, data=write(data))
    if record.acknowledged is not None:
        yield Event(kind=EventKind.ACKNOWLEDGED, at=record.acknowledged, boot_id=record.boot_id, key=record.key)


def _track(track: Track, boot: str) -> Iterator[Event]:
    yield raised_again(track, boot)
    if track.latched:
        yield Event(kind=EventKind.LATCHED, at=track.last_seen, boot_id=boot, key=track.key)
    if track.released is not None and track.latch is Latch.ACKNOWLEDGE:  # no later boot releases it again
        yield Event(kind=EventKind.RELEASED, at=track.released, boot_id=boot, key=track.key)


def raised_again(track: Track, boot: str) -> Event:
    """Return the event whose fold gives this track."""
    data = Raised(
        evidence=track.evidence,
        count=track.count,
        severity=track.severity,
        advice=track.advice,
        latch=track.latch,
        first=track.first_seen,
        counters=track.counters,
    )
    kind = EventKind.RAISED if track.raised else EventKind.RISING
    return Event(kind=kind, at=track.last_seen, boot_id=boot, key=track.key, data=write(data))


def _reset(slot: str, at: Stamp, boot: str) -> Event:
    return Event(kind=EventKind.RESET, at=at, boot_id=boot, key=Key("gpu", gpu(slot)), data=write(Reset(ok=True)))


def _counts(state: State, now: Stamp) -> Iterator[Event]:
    """Yield sums over many events, which a few events cannot express."""
    summed = partial(Event, kind=EventKind.SUMMED, at=now, boot_id=state.boot_id)
    yield summed()
    for of, times in state.raises.items():
        yield summed(key=Key("raises", NODE), data=write(RaisedAt(of=str(of), times=" ".join(map(repr, times)))))
    for (owner, case), done in state.repairs.items():
        failed = " ".join(map(repr, done.failed))
        treated = Treated(case=case, reset=done.reset, reboot=done.reboot, failed=failed)
        yield summed(key=Key("treatments", Subject("board", part=owner)), data=write(treated))
    for (owner, kind), days in state.lemons.items():
        yield summed(key=Key("lemons", Subject("board", part=owner)), data={kind: " ".join(map(str, days))})
