"""Durable memory of the host other than its GPUs: ports ever active, mounts ever writable, and the count of uncorrected
errors of each memory controller.

This history distinguishes a fault from what was never there: a port without a cable, a data set mounted read-only.
The memory is made of events: `remembered` applies one, `host_events` yields those that rebuild it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from functools import lru_cache

from gpuwarden.health.event_data import read, write
from gpuwarden.health.model import Event, EventKind, Evidence, Key, Subject
from gpuwarden_collectors.dataclass import dataclass, replace
from gpuwarden_collectors.facts import Stamp

PORTS_KEPT, MOUNTS_KEPT, CONTROLLERS_KEPT = 1024, 256, 256
"""More than any host has. Beyond these nothing is learned, so that garbage cannot fill memory."""


@dataclass(frozen=True, slots=True)
class KnownPort:
    """A port that was once active, as stored in HOST_LEARNED.

    `gbps`: the highest rate it had, in Gb/s; 0 if never reported. `default_route`: the port last carried the host's
    default route. `slot`, `guid`: slot and GUID of its adapter, if sysfs gives them. `blind`: counters at their
    maximum, separated by spaces. `lanes`, `gtps`: PCIe width and speed of its adapter that an operator accepted; 0
    means the maximum of both ends.
    """

    gbps: float
    link_layer: str
    default_route: bool = False
    slot: str = ""
    blind: str = ""
    lanes: int = 0
    gtps: float = 0.0
    guid: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Durable memory of the host.

    `ports`: known ports by name (`mlx5_0/1`). `mounts`: source of each mount when it was last writable, by path.
    `uncorrected`: last judged count of each memory controller, so that errors while no daemon runs are not missed.
    """

    ports: Mapping[str, KnownPort] = field(default_factory=dict)
    mounts: Mapping[str, str] = field(default_factory=dict)
    uncorrected: Mapping[str, int] = field(default_factory=dict)


@lru_cache(maxsize=4096)
def port_subject(name: str) -> Subject:
    return Subject("port", part=name)


@lru_cache(maxsize=4096)
def port_key(name: str) -> str:
    """Return the key under which the counters of a port are kept."""
    return str(port_subject(name))


def mount_subject(path: str) -> Subject:
    return Subject("mount", part=path)


def port_learned(name: str, port: KnownPort, at: Stamp, boot_id: str) -> Event:
    return host_event(EventKind.HOST_LEARNED, port_subject(name), at, boot_id, write(port))


def mount_learned(path: str, source: str, at: Stamp, boot_id: str) -> Event:
    return host_event(EventKind.HOST_LEARNED, mount_subject(path), at, boot_id, {"source": source})


def uncorrected_learned(controller: str, count: int, at: Stamp, boot_id: str) -> Event:
    return host_event(EventKind.HOST_LEARNED, Subject("memory", part=controller), at, boot_id, {"uncorrected": count})


def forgotten(subject: Subject, at: Stamp, boot_id: str) -> Event:
    return host_event(EventKind.HOST_FORGOTTEN, subject, at, boot_id, {})


def host_event(kind: EventKind, subject: Subject, at: Stamp, boot_id: str, data: Evidence) -> Event:
    return Event(kind=kind, at=at, boot_id=boot_id, key=Key("host", subject), data=data)


def host_events(memory: HostMemory, at: Stamp, boot_id: str) -> Iterator[Event]:
    """Yield events that rebuild this memory from nothing, for a checkpoint."""
    for name, port in memory.ports.items():
        yield port_learned(name, port, at, boot_id)
    for path, source in memory.mounts.items():
        yield mount_learned(path, source, at, boot_id)
    for controller, count in memory.uncorrected.items():
        yield uncorrected_learned(controller, count, at, boot_id)


def remembered(memory: HostMemory, event: Event) -> HostMemory:
    """Return the memory after a HOST_LEARNED or HOST_FORGOTTEN event."""
    if event.key is None:
        return memory
    subject, learned = event.key.subject, event.kind == EventKind.HOST_LEARNED
    if subject.kind == "port":
        ports = {name: port for name, port in memory.ports.items() if name != subject.part}
        return replace(memory, ports={**ports, subject.part: read(KnownPort, event)} if learned else ports)
    if subject.kind == "mount":
        mounts = {path: source for path, source in memory.mounts.items() if path != subject.part}
        return replace(
            memory, mounts={**mounts, subject.part: str(event.data.get("source", ""))} if learned else mounts
        )
    if subject.kind == "memory" and learned:
        count = event.data.get("uncorrected")
        uncorrected = count if isinstance(count, int) else 0
        return replace(memory, uncorrected={**memory.uncorrected, subject.part: uncorrected})
    return memory
