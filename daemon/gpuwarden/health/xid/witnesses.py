"""Checks kernel log lines, which can be forged, against the PCI bus and NVML as witnesses.

A line about a slot that holds no GPU and no switch is not the driver's. This is checked only if NVIDIA functions were
seen on the bus in this boot (a container's sysfs may show none); otherwise every line counts. Lines that name no slot
count. PCIe error lines count too: they may name any device on the path, also of other vendors, and only warn.

Xid 79 means that a GPU is gone. The driver reports it in the function that marks the GPU as lost (osHandleGpuLost in
osinit.c); from then on NVML answers GPU_IS_LOST. An NVML event cannot be forged and needs no witness. A kernel log line
can be forged, and DCGM forwards values that its users inject, so both are checked against the PCI bus and NVML.

| Xid 79 | is |
|---|---|
| reported by NVML | a failure at once |
| one witness shows the GPU gone, even before the line | a failure at once |
| both show it: a readable configuration space, and an answer, each read after the line | a warning, `contradicted`; re-evaluated for a minute |
| a witness has not finished a pass that began after the line | undecided, for at most `ANSWERED_WITHIN` |
| a witness cannot answer: that pass hung or failed, or there was none within `ANSWERED_WITHIN` | a failure |
| a daemon that has just started has no pass yet, and the line was `contradicted` before | a warning as before |

A failure never becomes milder.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Any

from gpuwarden.health.kernel_lines.records import OF_GPUS
from gpuwarden.health.memory import Record, State
from gpuwarden.health.model import Advice, Key
from gpuwarden.health.view import Seen, Sight
from gpuwarden.health.xid.catalogue import Xid, XidClass
from gpuwarden.health.xid.pairing import PAIRED_WITHIN
from gpuwarden.health.xid.ruling import Ruling, plain
from gpuwarden_collectors.dataclass import replace
from gpuwarden_collectors.event_facts import GpuResetEvent, HostEvent, KernelLineEvent, Source, SxidEvent, XidEvent
from gpuwarden_collectors.facts import GpuAnswer, Stamp
from gpuwarden_collectors.pci_facts import PciFacts, PciKind

UNKNOWN_SLOT = "unknown_slot"
"""Reason for which a line is rejected here, in addition to those of the kernel log's reader."""
FALLEN = "79"
ASKED_FOR = 60.0
"""Seconds after an Xid 79 for which PCI bus and NVML are checked for the GPU."""
ANSWERED_WITHIN = 30.0
"""Seconds to wait for a witness. The pass in progress and the next one take at most 10 s each (the defaults), and a
worker that hung is replaced between them."""
CONTRADICTED = "contradicted"


# --- slots


def observed(state: State, sight: Sight) -> State:
    """Return the state with the slots that this pass shows. They are kept for the boot, not across a daemon restart."""
    moments = state.moments
    pci, nvml = sight.view.pci.facts, sight.view.nvml.facts
    on_bus = () if pci is None else (device.slot for device in pci.devices)
    listed = () if nvml is None else (facts.slot for facts in nvml.gpus if facts.slot)
    slots, above = frozenset((*on_bus, *listed)), ports_above(pci)
    bus_observed = moments.bus_observed or bool(pci and pci.devices)
    if slots <= moments.slots and above <= moments.ports_above and bus_observed is moments.bus_observed:
        return state
    slots, above = moments.slots | slots, moments.ports_above | above
    return replace(state, moments=replace(moments, slots=slots, ports_above=above, bus_observed=bus_observed))


def ports_above(pci: PciFacts | None) -> frozenset[str]:
    """Return the PCIe ports above the GPUs on the bus."""
    devices = () if pci is None else pci.devices
    return frozenset(port for device in devices if device.kind is PciKind.GPU for port in device.upstream)


def believed(state: State, host_events: Sequence[HostEvent]) -> Sequence[HostEvent]:
    """Drop kernel log lines about slots that are neither pinned nor were seen in this boot."""
    if not host_events or not state.moments.bus_observed:
        return host_events
    recorded = {key.subject.slot for key, record in state.records.items() if record.boot_id == state.boot_id}
    slots = {"", *state.pins, *state.given_up, *state.moments.slots, *recorded}
    return [event for event in host_events if _slot(event) in slots]


def _slot(event: HostEvent) -> str:
    """Return the slot that a kernel log line is about; empty for all other events."""
    match event:
        case XidEvent(source=Source.KERNEL_LOG, slot=slot) | SxidEvent(slot=slot) | GpuResetEvent(slot=slot):
            return slot
        case KernelLineEvent(what=kind, slot=slot) if kind in OF_GPUS:
            return slot
        case _:
            return ""


# --- Xid 79


def is_fallen(key: Key | None) -> bool:
    return key is not None and key.code == "xid" and key.detail == FALLEN


def asked_since(state: State, record: Record) -> float:
    """Return the boottime at which the newest line was read, which may be long after it was printed."""
    return max(state.moments.asked.get(record.key, 0.0), record.last.boottime)


def undecided(state: State, now: Stamp) -> bool:
    """Return True if a line without a finding may still wait for its witnesses."""
    asked = state.moments.asked.items()
    return any(key not in state.tracks and now.boottime - at <= ANSWERED_WITHIN for key, at in asked)


def contradicted(state: State, key: Key) -> bool:
    track = state.tracks.get(key)
    return track is not None and CONTRADICTED in track.evidence


class _Answer(Enum):
    HERE = auto()
    GONE = auto()
    NONE = auto()
    NOT_YET = auto()


def fallen_off(state: State, sight: Sight, record: Record, row: Xid) -> Ruling | None:
    """Return the ruling on an Xid 79; None while a witness has time to answer."""
    if _reported_by_nvml(record):
        return plain(row)
    slot = record.key.subject.slot
    answers = {_bus(slot, sight, record.last), _nvml(slot, sight, record.last)} if slot else {_Answer.NONE}
    if _Answer.GONE in answers or _Answer.NONE in answers:
        return plain(row)
    if _Answer.NOT_YET in answers:
        if contradicted(state, record.key) and record.key not in state.moments.asked:
            return None  # the witnesses of an earlier daemon had the GPU; those of this one have not ended a pass yet
        waited = sight.now.boottime - asked_since(state, record)
        return None if waited < ANSWERED_WITHIN else plain(row)
    why = "its configuration space can be read and NVML has an answer of it, both after the line"
    return Ruling(XidClass.WARNING, Advice.OBSERVE, {CONTRADICTED: why})


def _reported_by_nvml(record: Record) -> bool:
    """Return True if NVML reported the newest Xid, or one so shortly before it that both are the same Xid."""
    return record.nvml is not None and record.last.boottime - record.nvml <= PAIRED_WITHIN


def _bus(slot: str, sight: Sight, line: Stamp) -> _Answer:
    device = None if sight.devices is None else sight.devices.get(slot)
    if sight.devices and (device is None or device.responds is False):
        return _Answer.GONE
    return _answer(sight.view.pci, line, here=device is not None and device.responds is True)


def _nvml(slot: str, sight: Sight, line: Stamp) -> _Answer:
    facts = sight.gpus.get(slot)
    if sight.gpus and (facts is None or facts.answer is GpuAnswer.LOST):
        return _Answer.GONE
    return _answer(sight.view.nvml, line, here=facts is not None and facts.answer is GpuAnswer.OK)


def _answer(seen: Seen[Any], line: Stamp, *, here: bool) -> _Answer:
    if here and seen.started is not None and seen.started.boottime > line.boottime:
        return _Answer.HERE
    begun = seen.latest is not None and seen.latest.started.boottime > line.boottime
    return _Answer.NONE if begun else _Answer.NOT_YET
