"""The judge's memory, and the one way in which it changes: by events, one after the other.

`fold(state, event)` is the only place where tracks, records and pins change durably. The judge decides *events* from
what it sees; live they are folded at once and written to the ledger, after a restart the ledger's events are folded
again and give the same state. What a restart may forget (evidence of the last pass, rates over a window) is refreshed
by `Track.seen` and `Windows` and needs no event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from gpuwarden.health.conditions import condition
from gpuwarden.health.model import Advice, Event, EventKind, Evidence, Health, Key, Latch, Pin, Severity, gpu
from gpuwarden.health.windows import Windows
from gpuwarden_collectors.facts import Stamp


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """One condition on one subject, from its first sighting on. It is a finding once `raised`.

    `clean_since`: since when it was looked for and not seen. `released`: something was done that ends its latch (reset,
    reboot, replacement); it ends when a pass after `released` does not see it.
    """

    key: Key
    severity: Severity
    advice: Advice
    latch: Latch
    evidence: Evidence
    first_seen: Stamp
    last_seen: Stamp
    raised: bool = False
    latched: bool = False
    clean_since: Stamp | None = None
    released: Stamp | None = None
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Momentary events of one kind on one subject (`xid.79@gpu/…`): how often ever, how many the last time, and when.

    `history`: this boot's were all older than the first start of the ledger allows; they need confirmation, once.
    `fatal`: the line itself said so (NVSwitch errors only). `facility`: 0 for the kernel's own lines.
    """

    key: Key
    count: int = 0
    batch: int = 0
    last: Stamp
    boot_id: str
    history: bool = False
    fatal: bool = False
    facility: int = 0
    text: str = ""


Unpaired = Mapping[tuple[Key, str], tuple[float, int]]
"""By (record, source): when the source last reported it, and how many of its reports the other source has not made yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """`resets`: by slot, when the GPU was last reset. `given_up`: slots whose GPU an operator no longer expects.

    `news`: the records of this step.

    `windows`, `unpaired` and `news` span a moment to an hour and are not kept over a restart; everything else is.
    """

    boot_id: str = ""
    health: Health = Health.UNKNOWN
    pins: Mapping[str, Pin] = field(default_factory=dict)
    tracks: Mapping[Key, Track] = field(default_factory=dict)
    records: Mapping[Key, Record] = field(default_factory=dict)
    resets: Mapping[str, Stamp] = field(default_factory=dict)
    given_up: frozenset[str] = frozenset()
    news: frozenset[Key] = frozenset()
    windows: Windows = field(default_factory=dict)
    unpaired: Unpaired = field(default_factory=dict)


def counts(state: State, record: Record) -> bool:
    """Whether a record still says something of its GPU: it is of this boot, and the GPU was not reset since."""
    reset = state.resets.get(record.key.subject.slot)
    return record.boot_id == state.boot_id and (reset is None or record.last > reset)


def _without(tracks: Mapping[Key, Track], key: Key) -> dict[Key, Track]:
    return {k: t for k, t in tracks.items() if k != key}


def _text(event: Event, name: str, default: str = "") -> str:
    value = event.data.get(name, default)
    return value if isinstance(value, str) else default


def _word(kind: type[Word], text: str, default: Word) -> Word:
    """A word of ours; `default` for one that only the gpuwarden knows that wrote this ledger."""
    try:
        return kind(text)
    except ValueError:
        return default


def _number(event: Event, name: str, default: int = 0) -> int:
    value = event.data.get(name, default)
    return value if isinstance(value, int) else default


Word = TypeVar("Word", Severity, Advice, Latch, Health)
_OF_THE_TRACK = ("severity", "advice", "latch", "count", "first_boottime", "first_wall")


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
        severity=_word(Severity, _text(event, "severity"), row.severity),
        advice=_word(Advice, _text(event, "advice"), row.advice),
        latch=_word(Latch, _text(event, "latch"), row.latch),
        evidence=_evidence(event),
        first_seen=_first_seen(event),
        last_seen=event.at,
        raised=raised or (known is not None and known.raised),
        count=_number(event, "count", 1) if known is None else known.count,
    )
    return replace(state, tracks={**state.tracks, key: track})


def _record(state: State, event: Event) -> State:
    key = event.key
    if key is None or not (key.code == "pcie_aer_fatal" or (key.code in ("xid", "sxid") and key.detail.isdecimal())):
        return state
    known = state.records.get(key)
    same_boot = known is not None and known.boot_id == event.boot_id
    history = event.data.get("history") is True and (not same_boot or (known is not None and known.history))
    record = Record(
        key=key,
        count=(0 if known is None else known.count) + _number(event, "count", 1),
        batch=_number(event, "count", 1),
        last=event.at,
        boot_id=event.boot_id,
        history=history,
        fatal=event.data.get("fatal") is True,
        facility=_number(event, "facility"),
        text=_text(event, "text"),
    )
    tracks = state.tracks
    if (track := tracks.get(key)) is not None:
        released = None if counts(state, record) else track.released  # it came back after whatever was done
        count = track.count + _number(event, "count", 1)
        tracks = {**tracks, key: replace(track, count=count, last_seen=event.at, released=released)}
    return replace(state, records={**state.records, key: record}, tracks=tracks)


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
    )
    state = replace(state, pins={**state.pins, slot: pin})
    state = replace(state, given_up=state.given_up - {slot})
    if event.kind == EventKind.GPU_REPLACED:  # the fault went away with the board
        state = _released(state, event.at, slot, (Latch.RESET, Latch.REBOOT, Latch.ACKNOWLEDGE))
    return state


def _unpinned(state: State, event: Event) -> State:
    if event.key is None:
        return state
    slot = event.key.subject.slot
    return replace(
        state,
        pins={s: p for s, p in state.pins.items() if s != slot},
        tracks={k: t for k, t in state.tracks.items() if k.subject.slot != slot},
        given_up=state.given_up | {slot},
    )


def _over(state: State, key: Key) -> State:
    """The track is gone; lines from before our time that it was made of were confirmed for this once."""
    records = state.records
    if (record := records.get(key)) is not None and record.history:
        records = {**records, key: replace(record, history=False)}
    return replace(state, tracks=_without(state.tracks, key), records=records)


RESETS_KEPT = 256
"""More slots than any host has GPUs."""


def fold(state: State, event: Event) -> State:  # noqa: C901, PLR0911, PLR0912 - one arm for each kind of event, on one screen
    """The state after `event`. Events of kinds that change nothing leave it as it is."""
    match event.kind:
        case EventKind.BOOT if event.boot_id == state.boot_id:
            return state
        case EventKind.BOOT:
            # Rising and falling are timed by the clock of one boot: they begin anew.
            raised = {key: replace(track, clean_since=None) for key, track in state.tracks.items() if track.raised}
            state = replace(state, boot_id=event.boot_id, resets={}, tracks=raised)
            return _released(state, event.at, None, (Latch.RESET, Latch.REBOOT))
        case EventKind.RISING:
            return _raise(state, event, raised=False)
        case EventKind.RAISED:
            return _raise(state, event, raised=True)
        case EventKind.LATCHED if event.key is not None and event.key in state.tracks:
            track = replace(state.tracks[event.key], latched=True)
            return replace(state, tracks={**state.tracks, event.key: track})
        case EventKind.SUBSIDED | EventKind.CLEARED | EventKind.ACKNOWLEDGED if event.key is not None:
            return _over(state, event.key)
        case EventKind.XID | EventKind.SXID | EventKind.AER:
            return _record(state, event)
        case EventKind.RESET if event.key is not None and event.data.get("ok") is True:
            slot = event.key.subject.slot
            newest = dict(list({**state.resets, slot: event.at}.items())[-RESETS_KEPT:])
            state = replace(state, resets=newest)
            return _released(state, event.at, slot, (Latch.RESET,))
        case EventKind.GPU_PINNED | EventKind.GPU_REPLACED:
            return _pinned(state, event)
        case EventKind.GPU_UNPINNED:
            return _unpinned(state, event)
        case EventKind.MACHINE_CHANGED:
            return State(boot_id=event.boot_id)
        case EventKind.HEALTH:
            return replace(state, health=_word(Health, _text(event, "to"), Health.UNKNOWN))
        case _:
            return state


def pin_event(kind: EventKind, at: Stamp, boot_id: str, pin: Pin) -> Event:
    data: Evidence = {"uuid": pin.uuid, "name": pin.name, "serial": pin.serial, "links": pin.links}
    return Event(kind=kind, at=at, boot_id=boot_id, key=Key("gpu", gpu(pin.slot)), data=data)
