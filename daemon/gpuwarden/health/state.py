"""The judge's memory, and the one way in which it changes: by events, one after the other.

`fold(state, event)` is the only place where tracks, records and pins change durably. The judge decides *events* from
what it sees; live they are folded at once and written to the ledger, after a restart the ledger's events are folded
again and give the same state. What a restart may forget (evidence of the last pass, rates over a window) is refreshed
by `Track.seen` and `Windows` and needs no event.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from gpuwarden.health.conditions import condition
from gpuwarden.health.flaps import raised_once_more
from gpuwarden.health.host.memory import remembered
from gpuwarden.health.lemons.days import days_of
from gpuwarden.health.lemons.memory import counted, renamed
from gpuwarden.health.memory import LEMON_NODE, Record, State, Track, Unpaired, case, counts, failures
from gpuwarden.health.model import Advice, Event, EventKind, Evidence, Health, Key, Latch, Pin, Severity, gpu
from gpuwarden.health.repair_history import Repairs, repaired
from gpuwarden.health.xid.bursts import Bursts, extended, from_text, signs_of
from gpuwarden.health.xid.sxid_ports import Ports, with_lines
from gpuwarden_collectors.facts import Stamp

__all__ = ["Record", "State", "Track", "Unpaired", "counts", "fold", "pin_event"]


def _without(tracks: Mapping[Key, Track], key: Key) -> dict[Key, Track]:
    return {k: t for k, t in tracks.items() if k != key}


def _text(event: Event, name: str, default: str = "") -> str:
    value = event.data.get(name, default)
    return value if isinstance(value, str) else default


def _choice(kind: type[Choice], text: str, default: Choice) -> Choice:
    """The member of `kind`; `default` for one that only a newer gpuwarden, which wrote this ledger, knows."""
    try:
        return kind(text)
    except ValueError:
        return default


def _number(event: Event, name: str, default: int = 0) -> int:
    value = event.data.get(name, default)
    return value if isinstance(value, int) else default


Choice = TypeVar("Choice", Severity, Advice, Latch, Health)
_OF_THE_TRACK = ("severity", "advice", "latch", "count", "first_boottime", "first_wall", "counters")


def _evidence(event: Event) -> Evidence:
    return {name: value for name, value in event.data.items() if name not in _OF_THE_TRACK}


def _first_seen(event: Event) -> Stamp:
    boottime, wall = event.data.get("first_boottime"), event.data.get("first_wall")
    if isinstance(boottime, int | float) and isinstance(wall, int | float):
        return Stamp(float(boottime), float(wall))
    return event.at


def _raise(state: State, event: Event, *, raised: bool) -> State:
    key = event.key
    if key is None or (row := condition(key.code)) is None:  # of another version, which wrote this ledger
        return state
    known = state.tracks.get(key)
    track = Track(
        key=key,
        severity=_choice(Severity, _text(event, "severity"), row.severity),
        advice=_choice(Advice, _text(event, "advice"), row.advice),
        latch=_choice(Latch, _text(event, "latch"), row.latch),
        evidence=_evidence(event),
        first_seen=_first_seen(event),
        last_seen=event.at,
        raised=raised or (known is not None and known.raised),
        count=_number(event, "count", 1) if known is None else known.count,
        counters=_text(event, "counters") or ("" if known is None else known.counters),
    )
    raises = state.raises
    if raised and (known is None or not known.raised):
        raises = raised_once_more(raises, key, event.at.boottime)
    return replace(state, tracks={**state.tracks, key: track}, raises=raises)


def _record(state: State, event: Event) -> State:
    key = event.key
    if key is None or not (key.code == "pcie_aer_fatal" or (key.code in ("xid", "sxid") and key.detail.isdecimal())):
        return state
    known = state.records.get(key)
    same_boot = known is not None and known.boot_id == event.boot_id
    history = event.data.get("history") is True and (not same_boot or (known is not None and known.history))
    count = _number(event, "count", 1)  # 0: only the text is new, since another source gave the bare number before
    sequence = _number(event, "sequence", -1)
    later_line = known is not None and -1 < known.sequence < sequence  # whatever the log's clock shows, which drifts
    record = Record(
        key=key,
        count=(0 if known is None else known.count) + count,
        batch=count or (1 if known is None else known.batch),
        last=event.at,
        boot_id=event.boot_id,
        history=history,
        fatal=event.data.get("fatal") is True,
        nonfatal=event.data.get("nonfatal") is True,
        text=_text(event, "text"),
        sequence=max(sequence, known.sequence if known is not None and same_boot else -1),
        acknowledged=known.acknowledged if known is not None and same_boot and not later_line else None,
        bursts=_bursts(state, event, known if same_boot else None),
        ports=_ports(state, event, known if same_boot else None),
    )
    tracks = state.tracks
    if (track := tracks.get(key)) is not None:
        released = None if counts(state, record) else track.released  # it came back after whatever was done
        tracks = {**tracks, key: replace(track, count=track.count + count, last_seen=event.at, released=released)}
    return replace(state, records={**state.records, key: record}, tracks=tracks)


def _bursts(state: State, event: Event, known: Record | None) -> Bursts:
    """After a reset or an acknowledgement another burst begins: what was reported before is dealt with."""
    if written := _text(event, "bursts"):  # a checkpoint's
        return from_text(written)
    signs, pid = signs_of(_text(event, "signs")), _number(event, "pid", -1)
    named = pid if pid >= 0 else None
    if known is None:
        return extended((), event.at.boottime, signs, pid=named)
    return extended(known.bursts, event.at.boottime, signs, pid=named, separate=_dealt_with(state, known))


def _ports(state: State, event: Event, known: Record | None) -> Ports:
    text = _text(event, "ports")
    if not text and known is None:
        return {}
    return with_lines({} if known is None or _dealt_with(state, known) else known.ports, text)


def _dealt_with(state: State, known: Record) -> bool:
    return not counts(state, known) or (known.acknowledged is not None and known.acknowledged >= known.last)


def _released(state: State, at: Stamp, slot: str | None, latches: tuple[Latch, ...]) -> State:
    """Every latch of these kinds on the GPU in `slot` (None: on any) may end after `at`; one made of later lines may not."""

    def may_end(track: Track) -> bool:
        record = state.records.get(track.key)
        since = record is not None and record.boot_id == state.boot_id and record.last > at
        return track.latch in latches and (slot is None or (track.key.subject.slot == slot and not since))

    tracks = {k: replace(track, released=at) if may_end(track) else track for k, track in state.tracks.items()}
    return replace(state, tracks=tracks)


def _pinned(state: State, event: Event) -> State:
    if event.key is None:
        return state
    slot = event.key.subject.slot
    old = state.pins.get(slot)
    pin = Pin(
        slot=slot,
        uuid=_text(event, "uuid"),
        name=_text(event, "name"),
        serial=_text(event, "serial"),
        first_seen=event.at if old is None else old.first_seen,
        links=_number(event, "links"),
        pcie_width=_number(event, "pcie_width", 0 if old is None else old.pcie_width),
    )
    if old is not None and not old.uuid and pin.uuid:
        cases = {(pin.uuid if of == slot else of, kind): done for (of, kind), done in state.repairs.items()}
        state = replace(state, repairs=cases, lemons=renamed(state.lemons, slot, pin.uuid))
    state = replace(state, pins={**state.pins, slot: pin}, given_up=state.given_up - {slot})
    if event.kind == EventKind.GPU_REPLACED:  # the fault went away with the board, and so did what it had counted
        state = replace(state, windows={key: series for key, series in state.windows.items() if key[0] != slot})
        state = _released(state, event.at, slot, (Latch.RESET, Latch.REBOOT, Latch.ACKNOWLEDGE))
    return state


def _unpinned(state: State, event: Event) -> State:
    if event.key is None:
        return state
    slot, moved = event.key.subject.slot, "moved_to" in event.data  # its board did: the slot was not given up
    return replace(
        state,
        pins={s: p for s, p in state.pins.items() if s != slot},
        tracks={k: t for k, t in state.tracks.items() if k.subject.slot != slot},
        given_up=state.given_up if moved else state.given_up | {slot},
    )


def _over(state: State, key: Key) -> State:
    """The track is gone; lines from before our time that it was made of were confirmed for this once."""
    records = state.records
    if (record := records.get(key)) is not None and record.history:
        records = {**records, key: replace(record, history=False)}
    return replace(state, tracks=_without(state.tracks, key), records=records)


def _acknowledged(state: State, event: Event, key: Key) -> State:
    """The finding is over; the lines that it was made of are buried, and what `lemon_node` counted is forgotten."""
    state = _over(state, key)
    if key.code == LEMON_NODE:
        return replace(state, lemons={})
    record = state.records.get(key)
    if record is None or record.boot_id != event.boot_id:
        return state
    return replace(state, records={**state.records, key: replace(record, acknowledged=event.at)})


def _booted(state: State, event: Event) -> State:
    """Rising and falling are timed by the clock of one boot: they begin again. What stood was treated with a reboot."""
    cases = [case(state, track.key) for track in failures(state)]
    tracks = {key: replace(track, clean_since=None) for key, track in state.tracks.items() if track.raised}
    state = replace(
        state, boot_id=event.boot_id, resets={}, raises={}, tracks=tracks, records=_worth_keeping(state),
        repairs=repaired(state.repairs, cases, event.at.wall, "reboot"),
    )  # fmt: skip
    return _released(state, event.at, None, (Latch.RESET, Latch.REBOOT))


def _worth_keeping(state: State) -> Mapping[Key, Record]:
    """Records of findings, and the newest of the others; all, while a checkpoint is read (its records come first)."""
    if len(state.records) <= RECORDS_OF_OLD or not state.boot_id:
        return state.records
    oldest_first = sorted(state.records.items(), key=lambda item: (item[0] in state.tracks, item[1].last.wall))
    return dict(oldest_first[-RECORDS_OF_OLD:])


def _reset(state: State, event: Event, slot: str) -> State:
    cases = [case(state, track.key) for track in failures(state, slot, event.at.wall)]
    resets = dict(list({**state.resets, slot: event.at}.items())[-RESETS_KEPT:])
    state = replace(state, resets=resets, repairs=repaired(state.repairs, cases, event.at.wall, "reset"))
    return _released(state, event.at, slot, (Latch.RESET,))


def _summed(state: State, event: Event) -> State:
    """The sums of many events in a checkpoint. The first, without a key, resets what the events of the checkpoint itself counted."""
    key = event.key
    if key is None:
        return replace(state, raises={}, repairs={}, lemons={})
    owner = key.subject.part
    match key.code:
        case "lemons":
            days = {(owner, what): tuple(_numbers(event, what)) for what in event.data}
            return replace(state, lemons={**state.lemons, **days})
        case "treatments":
            done = Repairs(_seconds(event, "reset"), _seconds(event, "reboot"))
            return replace(state, repairs={**state.repairs, (owner, _text(event, "case")): done})
        case "raises":
            times = tuple(float(text) for text in _text(event, "times").split() if _TIME.fullmatch(text))
            return replace(state, raises={**state.raises, Key.parse(_text(event, "of")): times})
        case _:
            return state


_TIME = re.compile(r"\d{1,15}(\.\d{1,20})?", re.ASCII)


def _numbers(event: Event, name: str) -> list[int]:
    return [int(text) for text in _text(event, name).split() if text.isdecimal()]


def _seconds(event: Event, name: str) -> float:
    value = event.data.get(name, 0.0)
    return float(value) if isinstance(value, int | float) else 0.0


RECORDS_OF_OLD = 2048
"""Records that are kept at a boot, so that garbage of the last one leaves room for what is new."""
RESETS_KEPT = 256
"""More slots than any host has GPUs."""


def fold(state: State, event: Event) -> State:
    """The state after `event`. Events of kinds that change nothing leave it as it is."""
    after = _folded(state, event)
    if after.lemons is not state.lemons or event.kind in (EventKind.SUMMED, EventKind.MACHINE_CHANGED):
        return after
    lemons = counted(after.lemons, days_of(state, event), event.at.wall)
    return after if lemons is after.lemons else replace(after, lemons=lemons)


def _folded(state: State, event: Event) -> State:  # noqa: C901, PLR0911, PLR0912 - one arm for each kind of event, on one screen
    match event.kind:
        case EventKind.BOOT if event.boot_id == state.boot_id:
            return state
        case EventKind.BOOT:
            return _booted(state, event)
        case EventKind.RISING:
            return _raise(state, event, raised=False)
        case EventKind.RAISED:
            return _raise(state, event, raised=True)
        case EventKind.LATCHED if event.key is not None and event.key in state.tracks:
            track = replace(state.tracks[event.key], latched=True)
            return replace(state, tracks={**state.tracks, event.key: track})
        case EventKind.SUBSIDED | EventKind.CLEARED if event.key is not None:
            return _over(state, event.key)
        case EventKind.ACKNOWLEDGED if event.key is not None:
            return _acknowledged(state, event, event.key)
        case EventKind.XID | EventKind.SXID | EventKind.AER:
            return _record(state, event)
        case EventKind.RESET if event.key is not None and event.data.get("ok") is True:
            return _reset(state, event, event.key.subject.slot)
        case EventKind.GPU_PINNED | EventKind.GPU_REPLACED:
            return _pinned(state, event)
        case EventKind.GPU_UNPINNED:
            return _unpinned(state, event)
        case EventKind.HOST_LEARNED | EventKind.HOST_FORGOTTEN:
            return replace(state, host=remembered(state.host, event))
        case EventKind.MACHINE_CHANGED:
            return State(boot_id=event.boot_id)
        case EventKind.SUMMED:
            return _summed(state, event)
        case EventKind.HEALTH:
            return replace(state, health=_choice(Health, _text(event, "to"), Health.UNKNOWN))
        case _:
            return state


def pin_event(kind: EventKind, at: Stamp, boot_id: str, pin: Pin) -> Event:
    data: Evidence = {"uuid": pin.uuid, "name": pin.name, "serial": pin.serial, "links": pin.links}
    if pin.pcie_width:
        data = {**data, "pcie_width": pin.pcie_width}
    return Event(kind=kind, at=at, boot_id=boot_id, key=Key("gpu", gpu(pin.slot)), data=data)
