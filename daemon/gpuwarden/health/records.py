"""Converts host events to records: counted once even if several sources report them, and coalesced in a storm.

All lines of one kind about one subject in one step are one event with a count. If the log is read late, as after a
restart, an event spans at most `APART` seconds, so that each job gets only the lines of its time. Lines that name two
processes are two events, since several jobs may share a GPU, and the node. A report that another
source already made is not counted (`pairing.py`). If it is the first with the text of the line, it is an event with the
count 0 and the text. So is NVML's own report of an Xid 79, which no witness can contradict (`xid/witnesses.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field

from gpuwarden.features import parts
from gpuwarden.health.event_data import write
from gpuwarden.health.events import Lines, OomKilled, Reset
from gpuwarden.health.kernel_lines.records import ENDS, record_key
from gpuwarden.health.memory import State, with_error
from gpuwarden.health.model import NODE, Event, EventKind, Key, Subject, gpu
from gpuwarden.health.xid.bursts import joined, signs_text
from gpuwarden.health.xid.catalogue import XIDS
from gpuwarden.health.xid.lines import recovery_action, sign
from gpuwarden.health.xid.pairing import paired, young
from gpuwarden.health.xid.partners import CANCELS
from gpuwarden.health.xid.ruling import newest_signs
from gpuwarden.health.xid.sxid_ports import Ports, as_text, with_line
from gpuwarden.health.xid.witnesses import FALLEN
from gpuwarden_collectors.dataclass import dataclass, replace
from gpuwarden_collectors.event_facts import (
    AerEvent,
    AerSeverity,
    GpuResetEvent,
    HostEvent,
    KernelLineEvent,
    LogGap,
    OomKillEvent,
    Source,
    SxidEvent,
    XidEvent,
)

RECORDS_KEPT = 4096
"""More (subject, number) pairs than any host has. Beyond this, new ones are dropped so that garbage cannot fill memory,
except Xids that the vendor describes, of expected GPUs."""

APART, APART_MOST = 5.0, 64
"""Seconds that the lines of one event may span, and most additional events in a step. Own choice: a running daemon makes
a step within a second of a line, so only lines that are read late span more."""
PROCESSES_MOST = 8
"""Most events of one kind and subject in a step because of other processes: a user may start any number of them. Own
choice: few sites let more jobs share a GPU."""

_SET_ASIDE = parts("set_aside")
_NO_SUBJECT = Key("", NODE)
_RECORDED = (EventKind.XID, EventKind.SXID, EventKind.AER, EventKind.KERNEL_LINE)
_Line = XidEvent | SxidEvent | AerEvent | KernelLineEvent
_OF_PROCESS = (XidEvent, KernelLineEvent)
"""Lines that may name a process."""


@dataclass(slots=True)
class _Batch:
    """The lines of one kind about one subject in one step. `newest`: the last event; for Xids, the last with a text.

    `began`: time of the first line, seconds of CLOCK_BOOTTIME. `pid`: the process that a line named last. The driver and
    the kernel write some lines of an error without it: `pid='<unknown>'`, or the address alone.
    """

    newest: HostEvent
    began: float
    count: int = 0
    history: bool = True
    sequence: int = -1
    signs: tuple[str, ...] = ()
    fatal: bool = False
    nonfatal: bool = True
    ports: Ports = field(default_factory=dict)
    nvml: float | None = None
    pid: int | None = None

    def is_over(self, event: HostEvent) -> bool:
        """Return True if this event is too late for this batch and begins a new one. Historic events never do."""
        return not isinstance(event, LogGap) and not event.history and event.at.boottime - self.began > APART

    def names_another(self, event: HostEvent) -> bool:
        """Return True if this event names another process than the lines before it. Historic events never do."""
        if not isinstance(event, _OF_PROCESS) or event.history:
            return False
        return None not in (event.pid, self.pid) and event.pid != self.pid

    def add(self, event: HostEvent, *, counted: bool) -> None:
        self.count += counted
        if isinstance(event, LogGap | OomKillEvent):
            self.count, self.newest = self.count + (event.lost - 1 if isinstance(event, LogGap) else 0), event
            return
        self.history = self.history and event.history
        if event.text or not isinstance(self.newest, XidEvent) or not self.newest.text:
            self.newest = event
        if isinstance(event, _OF_PROCESS) and event.pid is not None:
            self.pid = event.pid
        if event.origin is not None:
            self.sequence = max(self.sequence, event.origin.sequence)
        if isinstance(event, XidEvent) and (signature := sign(event)) and signature not in self.signs[-1:]:
            self.signs = joined(self.signs, (signature,))
        if _of_nvml(event):
            self.nvml = event.at.boottime
        if isinstance(event, KernelLineEvent):
            self.signs = joined(self.signs, (event.what,))
        if isinstance(event, SxidEvent):
            fatal = _fatal(event)
            self.fatal, self.nonfatal = self.fatal or fatal is True, self.nonfatal and fatal is False
            port = "" if event.link is None else str(event.link)
            self.ports = with_line(self.ports, port, event.at.boottime)


_Over = list[tuple[tuple[EventKind, Key], _Batch]]


def _of_nvml(event: HostEvent) -> bool:
    """Return True if this is an Xid 79 that NVML itself reports."""
    return isinstance(event, XidEvent) and event.source is Source.NVML and str(event.xid) == FALLEN


def _fatal(event: SxidEvent) -> bool | None:
    """Return the severity by the term in the line, else by its number (ctrl_dev_nvswitch.h: 0 non-fatal, 1 fatal)."""
    return (
        event.fatal
        if event.fatal is not None
        else {0: False, 1: True}.get(-1 if event.severity is None else event.severity)
    )


def records(state: State, host_events: Sequence[HostEvent], boot_id: str) -> tuple[State, list[Event]]:
    """Return the state with updated pairing, and an event for each kind, subject and `APART` seconds."""
    if not host_events:
        return state, []
    unpaired = dict(state.moments.unpaired)
    batches: dict[tuple[EventKind, Key], _Batch] = {}
    over: _Over = []
    for event in _with_recoveries(host_events):
        if (target := target_of(event)) is None or _elsewhere(state, event) or _overflows(state, batches, target):
            continue
        if isinstance(event, XidEvent):
            state, own = _is_of_feature(state, event)
            target = (EventKind.TEST_XID, target[1]) if own else target
        if _ends_nothing(state, batches, target, event):
            continue
        counted = not (isinstance(event, XidEvent) and paired(unpaired, target[1], event.source, event.at.boottime))
        if counted or _of_nvml(event) or _adds_text(state, batches, target, event):
            if target in batches and _begins_new(batches[target], over, target, event):
                over.append((target, batches.pop(target)))
            batches.setdefault(target, _Batch(event, event.at.boottime)).add(event, counted=counted)
    newest = max(event.at.boottime for event in host_events)
    made = [_event(kind, key, batch, boot_id) for (kind, key), batch in (*over, *batches.items())]
    return replace(state, moments=replace(state.moments, unpaired=young(unpaired, newest))), [
        *made,
        *_cancelled(state, made),
    ]


def _begins_new(batch: _Batch, over: _Over, target: tuple[EventKind, Key], event: HostEvent) -> bool:
    if len(over) >= APART_MOST:
        return False
    of_target = sum(other == target for other, _ in over)
    return batch.is_over(event) or (of_target + 1 < PROCESSES_MOST and batch.names_another(event))


def _is_of_feature(state: State, event: XidEvent) -> tuple[State, bool]:
    """Return whether a feature caused this Xid. A feature that raises an exception counts as not having caused it."""
    for name, feature in _SET_ASIDE.items():
        try:
            if feature.is_own(state, event):
                return state, True
        except Exception as error:  # noqa: BLE001 - any exception of a feature
            state = with_error(state, name, error)
    return state, False


def _with_recoveries(host_events: Sequence[HostEvent]) -> Iterator[HostEvent]:
    """Yield the events, and a GPU reset after each Xid 154 with action *None*: the driver logs no line for a reset."""
    for event in host_events:
        yield event
        if isinstance(event, XidEvent) and event.xid == 154 and recovery_action(sign(event)) == 0:
            yield GpuResetEvent(at=event.at, slot=event.slot, ok=True, text=event.text, history=event.history)


def target_of(event: HostEvent) -> tuple[EventKind, Key] | None:  # noqa: PLR0911 - one arm for each kind of host event
    """Return the kind and key of the event that is recorded; None if none is."""
    match event:
        case XidEvent():
            return EventKind.XID, Key("xid", _gpu_or_node(event.slot), str(event.xid))
        case SxidEvent():
            return EventKind.SXID, Key("sxid", Subject("switch", event.slot), str(event.sxid))
        case AerEvent(severity=AerSeverity.FATAL | AerSeverity.UNRECOVERED):
            return EventKind.AER, Key("pcie_aer_fatal", _gpu_or_node(event.slot))
        case KernelLineEvent():
            return EventKind.KERNEL_LINE, record_key(event)
        case GpuResetEvent():
            return EventKind.RESET, Key("gpu", gpu(event.slot))
        case LogGap():
            return EventKind.LOG_GAP, _NO_SUBJECT
        case OomKillEvent(history=False) if (
            not event.of_limit or event.job or event.limit_job
        ):  # no limit of a session or service
            of = Subject("job", part=event.job) if event.job else NODE
            return EventKind.OOM_KILL, Key("oom_kill", of, "limit" if event.of_limit else "node")
        case _:
            return None


def _elsewhere(state: State, event: HostEvent) -> bool:
    """Return True if the kernel could not recover a device that is neither a GPU nor a port above one."""
    if not isinstance(event, AerEvent) or event.severity is not AerSeverity.UNRECOVERED:
        return False
    return not any(event.slot in slots for slots in (state.pins, state.moments.slots, state.moments.ports_above))


def _gpu_or_node(slot: str) -> Subject:
    return gpu(slot) if slot else NODE


def _overflows(state: State, batches: dict[tuple[EventKind, Key], _Batch], target: tuple[EventKind, Key]) -> bool:
    kind, key = target
    new = kind in _RECORDED and target not in batches and key not in state.records
    return new and len(state.records) + len(batches) >= RECORDS_KEPT and not _of_pinned_gpu(state, key)


def _ends_nothing(
    state: State, batches: dict[tuple[EventKind, Key], _Batch], target: tuple[EventKind, Key], event: HostEvent
) -> bool:
    return (
        isinstance(event, KernelLineEvent)
        and event.what in ENDS
        and target not in batches
        and target[1] not in state.records
    )


def _of_pinned_gpu(state: State, key: Key) -> bool:
    """Return True for a known Xid of a pinned GPU: these records are bounded, so they may exceed `RECORDS_KEPT`."""
    return key.code == "xid" and key.subject.slot in state.pins and int(key.detail) in XIDS


def _adds_text(
    state: State, batches: dict[tuple[EventKind, Key], _Batch], target: tuple[EventKind, Key], event: HostEvent
) -> bool:
    """Return True if a kernel line adds the text of an Xid that NVML or DCGM reported without one."""
    if not isinstance(event, XidEvent) or event.source is not Source.KERNEL_LOG:
        return False
    record = state.records.get(target[1])
    if target in batches or record is None or record.text != event.text:
        return True
    return (signature := sign(event)) != "" and signature not in newest_signs(record)


def _event(kind: EventKind, key: Key, batch: _Batch, boot_id: str) -> Event:
    event = batch.newest
    data: Lines | Reset | OomKilled
    match event:
        case LogGap():
            return Event(kind=kind, at=event.at, boot_id=boot_id, data={"count": batch.count})
        case GpuResetEvent():
            data = Reset(ok=event.ok, text=event.text)
        case OomKillEvent(of_limit=of_limit, job=job, limit_job=limit_job, pid=pid, uid=uid):
            data = OomKilled(of_limit=of_limit, job=job, limit_job=limit_job, pid=pid, uid=uid, count=batch.count)
        case XidEvent() | SxidEvent() | AerEvent() | KernelLineEvent():
            data = _lines(event, batch)
    return Event(kind=kind, at=event.at, boot_id=boot_id, key=key, data=write(data))


def _lines(event: _Line, batch: _Batch) -> Lines:
    lines = Lines(
        count=batch.count,
        text=event.text,
        history=batch.history,
        sequence=batch.sequence if batch.sequence >= 0 else None,
        signs=signs_text(batch.signs) or None,
    )
    if isinstance(event, SxidEvent):
        return replace(lines, fatal=batch.fatal, nonfatal=batch.nonfatal, ports=as_text(batch.ports))
    if isinstance(event, XidEvent):
        return replace(
            lines,
            pid=batch.pid,
            gpu_instance=event.gpu_instance,
            compute_instance=event.compute_instance,
            source=event.source.value,
            nvml=batch.nvml,
        )
    return replace(lines, pid=batch.pid) if isinstance(event, KernelLineEvent) else lines


_ENDS = tuple(ENDS)


def _cancelled(state: State, made: Sequence[Event]) -> Iterator[Event]:
    """Yield CLEARED for findings that one of these Xids or kernel lines ends."""
    for event in made:
        if (
            event.kind == EventKind.KERNEL_LINE
            and event.key in state.tracks
            and str(event.data.get("signs")).endswith(_ENDS)
        ):
            yield Event(
                kind=EventKind.CLEARED,
                at=event.at,
                boot_id=event.boot_id,
                key=event.key,
                data={"by": "a line of the kernel"},
            )
        if event.kind != EventKind.XID or event.key is None or event.key.detail not in CANCELS:
            continue
        key = Key("xid", event.key.subject, CANCELS[event.key.detail])
        later = any(other.key == key and other.at > event.at for other in made)
        if key in state.tracks and state.tracks[key].last_seen <= event.at and not later:
            by = {"by": f"Xid {event.key.detail}"}
            yield Event(kind=EventKind.CLEARED, at=event.at, boot_id=event.boot_id, key=key, data=by)
