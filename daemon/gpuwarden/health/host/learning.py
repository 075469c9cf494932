"""What the judge learns about the host other than its GPUs: events that add to or remove from its memory, and counter
windows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from gpuwarden.health.host.adapters import narrow
from gpuwarden.health.host.memory import (
    CONTROLLERS_KEPT,
    MOUNTS_KEPT,
    PORTS_KEPT,
    HostMemory,
    KnownPort,
    forgotten,
    mount_learned,
    mount_subject,
    port_key,
    port_learned,
    port_subject,
    uncorrected_learned,
)
from gpuwarden.health.host.port_downs import counted_downs
from gpuwarden.health.host.port_errors import EACH, LIMITS, SAMPLES, blind_counters
from gpuwarden.health.host.port_names import named_as_now
from gpuwarden.health.host.ports import port_counters
from gpuwarden.health.host.services import memory_counters, service_counters
from gpuwarden.health.model import Event
from gpuwarden.health.state import State
from gpuwarden.health.view import Named, Sight
from gpuwarden.health.windows import Series, Windows
from gpuwarden_collectors.base import NamedFacts, PassOutcome
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.host_facts import InfinibandFacts, MemoryFacts, PortFacts, ServicesFacts, StorageFacts

FORGET_AFTER = 600.0
"""Seconds of uptime before which a mount that is not there is not forgotten: a boot may bring it yet."""

_NO_PORTS = InfinibandFacts()

Readings = Mapping[tuple[str, str], int]


def now_known(sight: Sight, facts: type[Named]) -> Named | None:
    """Return facts of this kind if they are fresh and from the newest pass, otherwise None."""
    return sight.fresh(facts) if sight.view.seen(facts).outcome is PassOutcome.OBSERVED else None


def infiniband_now(sight: Sight) -> InfinibandFacts | None:
    """InfiniBand facts of the newest pass. *Absent* means that the kernel has no RDMA device: no port is there."""
    if sight.view.seen(InfinibandFacts).outcome is PassOutcome.ABSENT:
        return _NO_PORTS
    return now_known(sight, InfinibandFacts)


# --- What is learned and forgotten -----------------------------------------------------------------------------------


def learn_host(state: State, sight: Sight) -> Iterator[Event]:
    """Events for ports that are active or faster than ever, for mounts that are writable, and for ports and mounts that no longer matter."""
    if (infiniband := now_known(sight, InfinibandFacts)) is not None:
        known_ports = state.host.ports
        for name, port in _ports(known_ports, infiniband):
            if port is None:
                yield forgotten(port_subject(name), sight.now, sight.view.boot_id)
            else:
                yield port_learned(name, port, sight.now, sight.view.boot_id)
    if (storage := now_known(sight, StorageFacts)) is not None:
        mounts, booting = state.host.mounts, sight.now.boottime < FORGET_AFTER
        for path, source in _mounts(mounts, storage, booting=booting):
            if source is None:
                yield forgotten(mount_subject(path), sight.now, sight.view.boot_id)
            else:
                yield mount_learned(path, source, sight.now, sight.view.boot_id)


def learn_downs(state: State, sight: Sight) -> list[Event]:
    """Events for ports that went down."""
    if (infiniband := now_known(sight, InfinibandFacts)) is None:
        return []
    return counted_downs(state.port_downs, state.moments.ports_followed, infiniband, sight.now, sight.view.boot_id)


def learn_counts(state: State, sight: Sight) -> Iterator[Event]:
    """Events for uncorrected errors of memory controllers that are in the windows now: a restart counts on from there."""
    memory, uncorrected = now_known(sight, MemoryFacts), state.host.uncorrected
    if memory is None:
        return
    for controller, count in _counts(uncorrected, memory):
        yield uncorrected_learned(controller, count, sight.now, sight.view.boot_id)


def _counts(uncorrected: Mapping[str, int], memory: MemoryFacts) -> list[tuple[str, int]]:
    counts = [(name.removeprefix("memory/"), count) for (name, _), count in memory_counters(memory).items()]
    room = len(uncorrected) < CONTROLLERS_KEPT
    return [(name, count) for name, count in counts if uncorrected.get(name) != count and (name in uncorrected or room)]


def _ports(before: Mapping[str, KnownPort], infiniband: InfinibandFacts) -> list[tuple[str, KnownPort | None]]:
    """Changes of known ports, by name; None for a port that no longer matters, or that has another name."""
    known_ports = named_as_now(before, infiniband)
    changes: list[tuple[str, KnownPort | None]] = [(name, None) for name in before if name not in known_ports]
    changes += [(name, port) for name, port in known_ports.items() if port is not before.get(name)]
    for name in known_ports:
        device = name.rpartition("/")[0]
        if any(re.match(pattern, device) for pattern in infiniband.excluded):
            changes.append((name, None))
    for port in infiniband.ports:
        if port.state != "active" or (port.name not in known_ports and len(known_ports) >= PORTS_KEPT):
            continue
        then = known_ports.get(port.name, KnownPort(0.0, ""))
        now = replace(
            then,
            gbps=max(then.gbps, port.rate_gbps or 0.0),
            link_layer=port.link_layer or then.link_layer,
            default_route=_carries_route(port, then, known_ports, infiniband),
            slot=port.slot or then.slot,
            guid=port.guid or then.guid,
            blind=blind_counters(port),
        )
        if port.name not in known_ports or now != then:
            changes.append((port.name, now))
    return changes


def _carries_route(
    port: PortFacts, before: KnownPort, known_ports: Mapping[str, KnownPort], infiniband: InfinibandFacts
) -> bool:
    """Return True if the default route goes over a port that is active.

    It leaves a port for another one; while there is none, or it goes elsewhere, the port keeps it. While a port that had it
    is down, whatever port it goes over instead is only its stand-in.
    """
    if port.default_route:
        active = {other.name for other in infiniband.ports if other.state == "active"}
        return before.default_route or not any(
            p.default_route and name not in active for name, p in known_ports.items()
        )
    return before.default_route and not any(other.default_route for other in infiniband.ports)


def _mounts(known_mounts: Mapping[str, str], storage: StorageFacts, *, booting: bool) -> list[tuple[str, str | None]]:
    """New sources of mounts, by path; None for a mount that no longer matters."""
    here = {mount.path for mount in storage.mounts if mount.mounted or mount.expected}
    gone = [path for path in known_mounts if path not in here and not booting]
    changes: list[tuple[str, str | None]] = [(path, None) for path in gone]
    for mount in storage.mounts:
        room = mount.path in known_mounts or len(known_mounts) - len(gone) < MOUNTS_KEPT
        if mount.mounted and not mount.read_only and known_mounts.get(mount.path) != mount.source and room:
            changes.append((mount.path, mount.source))
    return changes


def accept_host(state: State, sight: Sight) -> Iterator[Event]:
    """Events by which the ports are accepted as they are: those that are down are given up, the others are this fast."""
    infiniband = infiniband_now(sight)
    if infiniband is None:
        return
    here = {port.name: port for port in infiniband.ports}
    for name, before in state.host.ports.items():
        port = here.get(name)
        if port is None or port.state not in ("active", ""):
            yield forgotten(port_subject(name), sight.now, sight.view.boot_id)
        elif (now := _as_it_is(port, before, infiniband)) != before:
            yield port_learned(name, now, sight.now, sight.view.boot_id)


def _as_it_is(port: PortFacts, before: KnownPort, infiniband: InfinibandFacts) -> KnownPort:
    """The port with its present rate, and with what the PCIe links of its adapter lack."""
    gbps = before.gbps if port.rate_gbps is None else min(before.gbps, port.rate_gbps)
    lacks = [lack for each in infiniband.adapters if each.slot == port.slot and (lack := narrow(each)) is not None]
    lanes, gtps = (lacks[0].lanes, lacks[0].gtps) if lacks else (0, 0.0)
    return replace(before, gbps=gbps, lanes=lanes, gtps=gtps)


# --- Counters --------------------------------------------------------------------------------------------------------


def counted_host(state: State, sight: Sight) -> State:
    """State with the counters of the newest passes in its windows. Windows of counters that are gone are dropped."""
    if (infiniband := now_known(sight, InfinibandFacts)) is not None:
        read = frozenset([port.name for port in infiniband.ports])
        if read != state.moments.ports_followed:
            state = replace(state, moments=replace(state.moments, ports_followed=read))
    windows = state.moments.host_windows
    for kind, at, facts, counters in _counting(sight):
        windows = _counted(state.host, windows, kind, at.boottime, counters(facts))
    return (
        state
        if windows is state.moments.host_windows
        else replace(state, moments=replace(state.moments, host_windows=windows))
    )


def _counted(host: HostMemory, windows: Windows, kind: str, at: float, readings: Readings) -> Windows:
    """The windows with one more pass of a collector; the same object if it was already added."""
    prefix = f"{kind}/"
    names = {name for name, _ in readings}
    if kind == "port":
        names.update(map(port_key, host.ports))
    result = {key: series for key, series in windows.items() if key[0] in names or not key[0].startswith(prefix)}
    for key, value in readings.items():
        series = windows.get(key)
        if series is None or at < series.at:  # the latter: another boot
            result[key] = _begun(host, key[0], at, value)
        elif key[1] not in LIMITS:
            result[key] = series.add(at, value) if at > series.at else series
        elif at - series.at >= EACH:
            result[key] = series.add(at, value, SAMPLES)
    return windows if result == windows else result


def _begun(host: HostMemory, name: str, at: float, value: int) -> Series:
    """A new window; for a memory controller, with what was counted since the last pass of the daemon before this one."""
    kind, _, controller = name.partition("/")
    uncorrected = host.uncorrected.get(controller) if kind == "memory" else None
    return Series.start(at, value) if uncorrected is None else Series.start(at, uncorrected).add(at, value)


_COUNTED: tuple[tuple[str, type[NamedFacts], Callable[[Any], Readings]], ...] = (
    ("port", InfinibandFacts, port_counters),
    ("memory", MemoryFacts, memory_counters),
    ("service", ServicesFacts, service_counters),
)


def _counting(sight: Sight) -> Iterator[tuple[str, Stamp, Any, Callable[[Any], Readings]]]:
    """The passes that count anything: what their subjects are called, when it was read, and how to count."""
    for kind, facts, counters in _COUNTED:
        latest, at = now_known(sight, facts), sight.view.seen(facts).at
        if latest is not None and at is not None:
            yield kind, at, latest, counters


def followed(windows: Windows, name: str, seconds: float) -> bool:
    """True if the counters of a thing were followed for that many seconds. A thing without counters has nothing to wait for."""
    spans = [series.followed for (of, _), series in windows.items() if of == name]
    return not spans or max(spans) >= seconds
