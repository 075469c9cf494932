"""The fold of the judge: how events change its state.

Only `fold(state, event)` changes tracks, records and pins durably. The judge emits *events*, which are folded at once
and written to the ledger. After a restart, folding the ledger's events gives the same state. Values that a restart may
lose (evidence of the last pass, rates over a window) are refreshed by `Track.seen` and `Windows` without events.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpuwarden.features import parts
from gpuwarden.health.conditions import condition
from gpuwarden.health.event_data import read, write
from gpuwarden.health.events import HealthSet, Lines, Pinned, Raised, RaisedAt, Reset, Treated
from gpuwarden.health.flaps import raised_once_more
from gpuwarden.health.gpu.remaps import BOARD, with_count
from gpuwarden.health.host.memory import remembered
from gpuwarden.health.host.port_downs import FLAPPING, with_downs, without_port
from gpuwarden.health.kernel_lines.records import ENDS, LINE_CODES
from gpuwarden.health.lemons.days import days_of
from gpuwarden.health.lemons.memory import counted, renamed
from gpuwarden.health.memory import LEMON_NODE, Record, State, Track, Unpaired, case, counts, failures, with_error
from gpuwarden.health.model import Event, EventKind, Json, Key, Latch, Pin, Severity, gpu
from gpuwarden.health.nvlink.link_counters import remembered as remembered_links
from gpuwarden.health.repair_history import OFTEN, Repairs, failed_again, repaired
from gpuwarden.health.xid.bursts import Bursts, extended, from_text, signs_of
from gpuwarden.health.xid.sxid_ports import Ports, with_lines
from gpuwarden_collectors.dataclass import replace
from gpuwarden_collectors.facts import Stamp

__all__ = ["Record", "State", "Track", "Unpaired", "counts", "fold", "pin_event"]


def _without(tracks: Mapping[Key, Track], key: Key) -> dict[Key, Track]:
    return {k: t for k, t in tracks.items() if k != key}


def _raise(state: State, event: Event, *, raised: bool) -> State:
    key = event.key
    if key is None or (row := condition(key.code)) is None:  # a condition of another version that wrote the ledger
        return state
    before, data = state.tracks.get(key), read(Raised, event)
    track = Track(
        key=key,
        severity=data.severity or row.severity,
        advice=data.advice or row.advice,
        latch=data.latch or row.latch,
        evidence=data.evidence,
        first_seen=data.first or event.at,
        last_seen=event.at,
        raised=raised or (before is not None and before.raised),
        count=data.count if before is None else before.count,
        counters=data.counters or ("" if before is None else before.counters),
    )
    raises, repairs = state.raises, state.repairs
    if raised and (before is None or not before.raised):
        raises = raised_once_more(raises, key, event.at.boottime)
        if track.severity is Severity.FAILURE and key.subject.slot in state.pins:
            repairs = failed_again(repairs, case(state, key), event.at.wall)
    return replace(state, tracks={**state.tracks, key: track}, raises=raises, repairs=repairs)


_UNNUMBERED = LINE_CODES | {"pcie_aer_fatal"}


def _record(state: State, event: Event) -> State:
    key = event.key
    if key is None or not (key.code in _UNNUMBERED or (key.code in ("xid", "sxid") and key.detail.isdecimal())):
        return state
    before, data = state.records.get(key), read(Lines, event)
    same_boot = before is not None and before.boot_id == event.boot_id
    history = data.history and (not same_boot or (before is not None and before.history))
    count, sequence = data.count, -1 if data.sequence is None else data.sequence
    later_line = before is not None and -1 < before.sequence < sequence  # not by time, since the log's clock drifts
    record = Record(
        key=key,
        count=(0 if before is None else before.count) + count,
        batch=count or (1 if before is None else before.batch),
        last=event.at,
        boot_id=event.boot_id,
        history=history,
        fatal=data.fatal is True,
        nonfatal=data.nonfatal is True,
        text=data.text,
        sequence=max(sequence, before.sequence if before is not None and same_boot else -1),
        acknowledged=before.acknowledged if before is not None and same_boot and not later_line else None,
        bursts=_bursts(state, data, event.at, before if same_boot else None),
        ports=_ports(state, data, before if same_boot else None),
        nvml=before.nvml if data.nvml is None and before is not None and same_boot else data.nvml,
    )
    tracks = state.tracks
    if (track := tracks.get(key)) is not None:
        released = None if counts(state, record) else track.released  # it came back after the release
        tracks = {**tracks, key: replace(track, count=track.count + count, last_seen=event.at, released=released)}
    return replace(state, records={**state.records, key: record}, tracks=tracks)


def _bursts(state: State, data: Lines, at: Stamp, record: Record | None) -> Bursts:
    """Add the lines to a burst. After a reset, an acknowledgement or a recovery a new burst begins."""
    if data.bursts:
        return from_text(data.bursts)
    signs, pid = signs_of(data.signs or ""), data.pid if data.pid is not None and data.pid >= 0 else None
    if record is None:
        return extended((), at.boottime, signs, pid=pid)
    recovered = bool(record.bursts) and not ENDS.isdisjoint(record.bursts[-1].signs[-1:])
    return extended(record.bursts, at.boottime, signs, pid=pid, separate=recovered or _dealt_with(state, record))


def _ports(state: State, data: Lines, record: Record | None) -> Ports:
    if not data.ports and record is None:
        return {}
    return with_lines({} if record is None or _dealt_with(state, record) else record.ports, data.ports or "")


def _dealt_with(state: State, record: Record) -> bool:
    return not counts(state, record) or (record.acknowledged is not None and record.acknowledged >= record.last)


def _released(state: State, at: Stamp, slot: str | None, latches: tuple[Latch, ...]) -> State:
    """Release latches of these kinds on the GPU in `slot` (None: on any) at `at`, except those with later lines."""

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
    old, data = state.pins.get(slot), read(Pinned, event)
    old_width = 0 if old is None else old.pcie_width
    old_settings = "" if old is None or event.kind == EventKind.GPU_REPLACED else old.settings
    old_licensed = old is not None and event.kind != EventKind.GPU_REPLACED and old.licensed
    pin = Pin(
        slot=slot,
        uuid=data.uuid,
        name=data.name,
        serial=data.serial,
        first_seen=event.at if old is None else old.first_seen,
        links=data.links,
        pcie_width=old_width if data.pcie_width is None else data.pcie_width,
        settings=old_settings if data.settings is None else data.settings,
        licensed=old_licensed if data.licensed is None else data.licensed,
    )
    if old is not None and not old.uuid and pin.uuid:
        cases = {(pin.uuid if of == slot else of, kind): done for (of, kind), done in state.repairs.items()}
        state = replace(state, repairs=cases, lemons=renamed(state.lemons, slot, pin.uuid))
    state = replace(state, pins={**state.pins, slot: pin}, given_up=state.given_up - {slot})
    if event.kind == EventKind.GPU_REPLACED:  # fault and counters left with the board
        windows = {key: series for key, series in state.moments.windows.items() if key[0] != slot}
        links = {of: counters for of, counters in state.links.items() if of != slot}
        records = _uncounted(state, slot)
        state = replace(state, moments=replace(state.moments, windows=windows), links=links, records=records)
        state = _released(state, event.at, slot, (Latch.RESET, Latch.REBOOT, Latch.ACKNOWLEDGE))
    return state


def _uncounted(state: State, slot: str) -> Mapping[Key, Record]:
    """Return the records, those of the slot with a count of 0: its board is gone. They stay, so that a line that is read
    again is known.
    """
    return {k: replace(r, count=0) if k.subject.slot == slot else r for k, r in state.records.items()}


def _unpinned(state: State, event: Event) -> State:
    if event.key is None:
        return state
    slot = event.key.subject.slot
    moved = not event.data.keys().isdisjoint(("moved_to", "exchanged"))  # the board moved: no operator gave the slot up
    return replace(
        state,
        pins={s: p for s, p in state.pins.items() if s != slot},
        tracks={k: t for k, t in state.tracks.items() if k.subject.slot != slot},
        given_up=state.given_up if moved else state.given_up | {slot},
        links={of: counters for of, counters in state.links.items() if of != slot},
        records=_uncounted(state, slot),
    )


def _over(state: State, key: Key) -> State:
    """Remove the track. Lines from before the first start that confirmed it do not confirm it again."""
    records = state.records
    if (record := records.get(key)) is not None and record.history:
        records = {**records, key: replace(record, history=False)}
    return replace(state, tracks=_without(state.tracks, key), records=records)


def _acknowledged(state: State, event: Event, key: Key) -> State:
    """End the finding. Its lines do not raise it again. For `lemon_node` the counted days are cleared."""
    state = _over(state, key)
    if key.code == LEMON_NODE:
        return replace(state, lemons={})
    record = state.records.get(key)
    if record is None or record.boot_id != event.boot_id:
        return state
    return replace(state, records={**state.records, key: replace(record, acknowledged=event.at)})


def _booted(state: State, event: Event) -> State:
    """Begin a new boot: rise and fall times restart with boot time, and active failures count as rebooted."""
    cases = [case(state, track.key) for track in failures(state)]
    tracks = {key: replace(track, clean_since=None) for key, track in state.tracks.items() if track.raised}
    state = replace(
        state,
        boot_id=event.boot_id,
        booted=event.at,
        resets={},
        raises={},
        tracks=tracks,
        records=_worth_keeping(state),
        port_downs={},
        repairs=repaired(state.repairs, cases, event.at.wall, "reboot"),
    )
    return _released(state, event.at, None, (Latch.RESET, Latch.REBOOT))


def _worth_keeping(state: State) -> Mapping[Key, Record]:
    """Return the records of findings and the newest others; all while a checkpoint is read (its records come first)."""
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
    """Fold the sums of a checkpoint. The first, without a key, clears the counts from the checkpoint's own events."""
    key = event.key
    if key is None:
        return replace(state, raises={}, repairs={}, lemons={})
    owner = key.subject.part
    match key.code:
        case "lemons":
            days = {(owner, kind): _days(text) for kind, text in event.data.items()}
            return replace(state, lemons={**state.lemons, **days})
        case "treatments":
            done = read(Treated, event)
            failed = tuple(float(text) for text in done.failed.split() if _TIME.fullmatch(text))[-OFTEN:]
            history = Repairs(done.reset, done.reboot, failed)
            return replace(state, repairs={**state.repairs, (owner, done.case): history})
        case "raises":
            data = read(RaisedAt, event)
            times = tuple(float(text) for text in data.times.split() if _TIME.fullmatch(text))
            return replace(state, raises={**state.raises, Key.parse(data.of): times})
        case _:
            return state


_TIME = re.compile(r"\d{1,15}(\.\d{1,20})?", re.ASCII)


def _days(text: Json) -> tuple[int, ...]:
    return tuple(int(day) for day in text.split() if day.isdecimal()) if isinstance(text, str) else ()


MEMORIES = parts("memory")
"""By feature: the module with the fold of its memory."""
RECORDS_OF_OLD = 2048
"""Most records kept at a boot, so that many useless ones of the last boot leave room for new ones."""
RESETS_KEPT = 256
"""More slots than any host has GPUs."""


def fold(state: State, event: Event) -> State:
    """Return the state after `event`; the same state for kinds of events that change nothing."""
    after = _by_features(_folded(state, event), event)
    if after.lemons is not state.lemons or event.kind in (EventKind.SUMMED, EventKind.MACHINE_CHANGED):
        return after
    if not (days := tuple(days_of(state, event))):
        return after
    lemons = counted(after.lemons, days, event.at.wall)
    return after if lemons is after.lemons else replace(after, lemons=lemons)


def _by_features(state: State, event: Event) -> State:
    """Fold an event into the features' memories. If one raises, only that memory lacks the event."""
    for name, memory in MEMORIES.items():
        if event.kind in memory.KINDS:
            before = state.features.get(name, memory.EMPTY)
            try:
                after = memory.fold(before, event, state)
            except Exception as error:  # noqa: BLE001 - any exception of a feature
                state = with_error(state, name, error)
                continue
            if after is not before:
                state = replace(state, features={**state.features, name: after})
    return state


def _folded(state: State, event: Event) -> State:  # noqa: C901, PLR0911, PLR0912 - one arm for each kind of event, on one screen
    match event.kind:  # frequent kinds come first
        case EventKind.XID | EventKind.SXID | EventKind.AER | EventKind.KERNEL_LINE:
            return _record(state, event)
        case EventKind.RISING:
            return _raise(state, event, raised=False)
        case EventKind.RAISED:
            return _raise(state, event, raised=True)
        case EventKind.LATCHED if event.key is not None and event.key in state.tracks:
            track = replace(state.tracks[event.key], latched=True)
            return replace(state, tracks={**state.tracks, event.key: track})
        case EventKind.SUBSIDED | EventKind.CLEARED if event.key is not None:
            return _over(state, event.key)
        case EventKind.HEALTH:
            return replace(state, health=read(HealthSet, event).to)
        case EventKind.BOOT if event.boot_id == state.boot_id:
            return state
        case EventKind.BOOT:
            return _booted(state, event)
        case EventKind.ACKNOWLEDGED if event.key is not None:
            return _acknowledged(state, event, event.key)
        case EventKind.RESET if event.key is not None and read(Reset, event).ok:
            return _reset(state, event, event.key.subject.slot)
        case EventKind.GPU_PINNED | EventKind.GPU_REPLACED:
            return _pinned(state, event)
        case EventKind.GPU_UNPINNED:
            return _unpinned(state, event)
        case EventKind.HOST_LEARNED if event.key is not None and event.key.subject.kind == BOARD:
            return replace(state, remaps=with_count(state.remaps, event))
        case EventKind.HOST_FORGOTTEN:
            return replace(state, host=remembered(state.host, event), port_downs=without_port(state.port_downs, event))
        case EventKind.HOST_LEARNED:
            return replace(state, host=remembered(state.host, event))
        case EventKind.COUNTED if event.key is not None and event.key.code == FLAPPING:
            return replace(state, port_downs=with_downs(state.port_downs, event))
        case EventKind.COUNTED:
            return replace(state, links=remembered_links(state.links, event))
        case EventKind.RELEASED if event.key is not None and event.key in state.tracks:
            track = replace(state.tracks[event.key], released=event.at)
            return replace(state, tracks={**state.tracks, event.key: track})
        case EventKind.MACHINE_CHANGED:
            return State(boot_id=event.boot_id)
        case EventKind.SUMMED:
            return _summed(state, event)
        case _:
            return state


def pin_event(kind: EventKind, at: Stamp, boot_id: str, pin: Pin) -> Event:
    data = Pinned(
        uuid=pin.uuid,
        name=pin.name,
        serial=pin.serial,
        links=pin.links,
        pcie_width=pin.pcie_width or None,
        settings=pin.settings or None,
        licensed=pin.licensed or None,
    )
    return Event(kind=kind, at=at, boot_id=boot_id, key=Key("gpu", gpu(pin.slot)), data=write(data))
