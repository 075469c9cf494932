"""Host events become records: counted once, though two sources may report them, and coalesced, though they may storm.

The kernel log and NVML's event set both report an Xid, in either order, within seconds of each other. A report of one
source is paired with an open report of the other from the last `PAIRED_WITHIN` seconds and then not counted again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpuwarden.health.model import NODE, Event, EventKind, Evidence, Key, Subject, gpu
from gpuwarden.health.state import State, Unpaired
from gpuwarden_collectors.facts import (
    AerEvent,
    AerSeverity,
    GpuResetEvent,
    HostEvent,
    LogGap,
    Source,
    SxidEvent,
    XidEvent,
)

PAIRED_WITHIN = 5.0
RECORDS_KEPT = 4096
"""More (subject, number) pairs than any host has; beyond it new ones are dropped, so that garbage cannot fill memory."""


def records(state: State, happened: Sequence[HostEvent], boot_id: str) -> tuple[State, list[Event]]:
    """The events for what happened, one for each kind and subject of the batch, and the state with its pairing updated."""
    unpaired = dict(state.unpaired)
    batch: dict[tuple[str, Key], Event] = {}
    for event in _with_recoveries(happened):
        if (made := _event(event, boot_id)) is None or _paired(unpaired, event, made):
            continue
        if made.key is not None and made.key not in state.records and len(state.records) + len(batch) >= RECORDS_KEPT:
            continue
        key = (made.kind, made.key or Key("", NODE))
        batch[key] = made if key not in batch else _together(batch[key], made)
    return replace(state, unpaired=_young(unpaired, happened)), list(batch.values())


def _with_recoveries(happened: Sequence[HostEvent]) -> Iterator[HostEvent]:
    """The driver prints no line for a reset; its Xid 154 that no recovery is needed any more says the same."""
    for event in happened:
        yield event
        if isinstance(event, XidEvent) and event.xid == 154 and event.text.endswith("to 0x0 (None)"):
            yield GpuResetEvent(at=event.at, slot=event.slot, ok=True, text=event.text, history=event.history)


def _event(event: HostEvent, boot_id: str) -> Event | None:
    match event:
        case XidEvent():
            kind, key = EventKind.XID, Key("xid", _gpu_or_node(event.slot), str(event.xid))
        case SxidEvent():
            kind, key = EventKind.SXID, Key("sxid", Subject("switch", event.slot), str(event.sxid))
        case AerEvent(severity=AerSeverity.FATAL):
            kind, key = EventKind.AER, Key("pcie_aer_fatal", _gpu_or_node(event.slot))
        case GpuResetEvent():
            reset: Evidence = {"ok": event.ok, "text": event.text}
            return Event(
                kind=EventKind.RESET, at=event.at, boot_id=boot_id, key=Key("gpu", gpu(event.slot)), data=reset
            )
        case LogGap():
            return Event(kind=EventKind.LOG_GAP, at=event.at, boot_id=boot_id, data={"count": event.lost})
        case _:
            return None
    data: Evidence = {"count": 1, "text": event.text, "history": event.history, **_details(event)}
    return Event(kind=kind, at=event.at, boot_id=boot_id, key=key, data=data)


def _gpu_or_node(slot: str) -> Subject:
    return gpu(slot) if slot else NODE


def _details(event: XidEvent | SxidEvent | AerEvent) -> dict[str, str | int]:
    details: dict[str, str | int] = {}
    if event.origin is not None and event.origin.facility != 0:
        details["facility"] = event.origin.facility
    if isinstance(event, SxidEvent):
        details["fatal"] = event.fatal is True
    if isinstance(event, XidEvent):
        named = {"pid": event.pid, "gpu_instance": event.gpu_instance, "compute_instance": event.compute_instance}
        details |= {name: value for name, value in named.items() if value is not None}
        details["source"] = event.source.value
    return details


def _paired(unpaired: dict[tuple[Key, str], tuple[float, int]], event: HostEvent, made: Event) -> bool:
    """Whether the other source has already reported this Xid; remembers it as open if not."""
    if not isinstance(event, XidEvent) or made.key is None:
        return False
    mine = (made.key, event.source.value)
    other = (made.key, Source.NVML.value if event.source is Source.KERNEL_LOG else Source.KERNEL_LOG.value)
    at, count = unpaired.get(other, (0.0, 0))
    if count > 0 and abs(event.at.boottime - at) <= PAIRED_WITHIN:
        unpaired[other] = (at, count - 1)
        return True
    at, count = unpaired.get(mine, (0.0, 0))
    fresh = abs(event.at.boottime - at) <= PAIRED_WITHIN
    unpaired[mine] = (event.at.boottime, count + 1 if fresh else 1)
    return False


def _young(unpaired: Unpaired, happened: Sequence[HostEvent]) -> Unpaired:
    if not happened:
        return unpaired
    newest = max(event.at.boottime for event in happened)
    return {k: (at, n) for k, (at, n) in unpaired.items() if newest - at <= 2 * PAIRED_WITHIN}


def _together(first: Event, more: Event) -> Event:
    def count(event: Event) -> int:
        value = event.data.get("count", 1)
        return value if isinstance(value, int) else 1

    both_old = first.data.get("history") is True and more.data.get("history") is True
    return replace(more, data={**more.data, "count": count(first) + count(more), "history": both_old})
