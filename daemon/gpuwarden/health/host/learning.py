"""Learns about the host other than its GPUs: events that change the judge's memory, and counter windows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
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
from gpuwarden_collectors.dataclass import replace
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.host_facts import InfinibandFacts, MemoryFacts, PortFacts, ServicesFacts, StorageFacts

FORGET_AFTER = 600.0
"""Seconds of uptime before which a missing mount is not forgotten, since the boot may still mount it."""

_NO_PORTS = InfinibandFacts()

Readings = Mapping[tuple[str, str], int]


def now_known(sight: Sight, facts: type[Named]) -> Named | None:
    """Return facts of this kind if they are fresh and from the newest pass, otherwise None."""
    seen = sight.view.seen(facts)
    return seen.fresh(sight.now, sight.rules.host_fresh_for) if seen.outcome is PassOutcome.OBSERVED else None


def infiniband_now(sight: Sight) -> InfinibandFacts | None:
    """Return the InfiniBand facts of the newest pass. *Absent* means no RDMA device in the kernel, so no ports."""
    if sight.view.seen(InfinibandFacts).outcome is PassOutcome.ABSENT:
        return _NO_PORTS
    return now_known(sight, InfinibandFacts)


# --- What is learned and forgotten -----------------------------------------------------------------------------------


def learn_host(state: State, sight: Sight) -> Iterator[Event]:
    """Yield events for changes of known ports and writable mounts, and for ports and mounts to forget."""
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
    """Return events for ports that went down."""
    if (infiniband := now_known(sight, InfinibandFacts)) is None:
        return []
    return counted_downs(state.port_downs, state.moments.ports_followed, infiniband, sight.now, sight.view.boot_id)


def learn_counts(state: State, sight: Sight) -> Iterator[Event]:
    """Yield events for new counts of uncorrected memory errors, from which a restarted daemon continues."""
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
    """Return changes of known ports by name; None for a port that is now excluded, or has another name."""
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
    """Return True if this active port counts as the one that carries the default route.

    A port loses this role only when another port carries the route. A port that carries the route while the previous
    one is down is only a substitute and does not gain the role.
    """
    if port.default_route:
        active = {other.name for other in infiniband.ports if other.state == "active"}
        return before.default_route or not any(
            p.default_route and name not in active for name, p in known_ports.items()
        )
    return before.default_route and not any(other.default_route for other in infiniband.ports)


def _mounts(known_mounts: Mapping[str, str], storage: StorageFacts, *, booting: bool) -> list[tuple[str, str | None]]:
    """Return new sources of mounts by path; None for a mount that is gone and not expected."""
    here = {mount.path for mount in storage.mounts if mount.mounted or mount.expected}
    gone = [path for path in known_mounts if path not in here and not booting]
    changes: list[tuple[str, str | None]] = [(path, None) for path in gone]
    for mount in storage.mounts:
        room = mount.path in known_mounts or len(known_mounts) - len(gone) < MOUNTS_KEPT
        if mount.mounted and not mount.read_only and known_mounts.get(mount.path) != mount.source and room:
            changes.append((mount.path, mount.source))
    return changes


def accept_host(state: State, sight: Sight) -> Iterator[Event]:
    """Yield events that accept the ports as they are: forget ports that are down, lower the rate of the others."""
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
    """Return the port with its present rate and the present deficit of its adapter's PCIe links."""
    gbps = before.gbps if port.rate_gbps is None else min(before.gbps, port.rate_gbps)
    lacks = [lack for each in infiniband.adapters if each.slot == port.slot and (lack := narrow(each)) is not None]
    lanes, gtps = (lacks[0].lanes, lacks[0].gtps) if lacks else (0, 0.0)
    return replace(before, gbps=gbps, lanes=lanes, gtps=gtps)


# --- Counters --------------------------------------------------------------------------------------------------------


def counted_host(state: State, sight: Sight) -> State:
    """Return the state with the newest counters added to its windows. Windows of vanished counters are dropped."""
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
    """Return the windows with one more pass of a collector; the same object if the pass was already added."""
    prefix = f"{kind}/"
    names = {name for name, _ in readings}
    if kind == "port":
        names.update(map(port_key, host.ports))
    result = {key: series for key, series in windows.items() if key[0] in names or not key[0].startswith(prefix)}
    for key, value in readings.items():
        series = windows.get(key)
        if series is None or at < series.at:  # a smaller time: another boot
            result[key] = _begun(host, key[0], at, value)
        elif key[1] not in LIMITS:
            result[key] = series.add(at, value) if at > series.at else series
        elif at - series.at >= EACH:
            result[key] = series.add(at, value, SAMPLES)
    return windows if result == windows else result


def _begun(host: HostMemory, name: str, at: float, value: int) -> Series:
    """Return a new window. One for a memory controller includes errors since the previous daemon's last pass."""
    kind, _, controller = name.partition("/")
    uncorrected = host.uncorrected.get(controller) if kind == "memory" else None
    return Series.start(at, value) if uncorrected is None else Series.start(at, uncorrected).add(at, value)


_COUNTED: tuple[tuple[str, type[NamedFacts], Callable[[Any], Readings]], ...] = (
    ("port", InfinibandFacts, port_counters),
    ("memory", MemoryFacts, memory_counters),
    ("service", ServicesFacts, service_counters),
)


def _counting(sight: Sight) -> Iterator[tuple[str, Stamp, Any, Callable[[Any], Readings]]]:
    """Yield the passes with counters: kind of subject, time of the pass, facts, and the reader of the counters."""
    for kind, facts, counters in _COUNTED:
        latest, at = now_known(sight, facts), sight.view.seen(facts).at
        if latest is not None and at is not None:
            yield kind, at, latest, counters


def followed(windows: Windows, name: str, seconds: float) -> bool:
    """Return True if the counters of a subject were followed for that many seconds, or it has none."""
    spans = [series.followed for (of, _), series in windows.items() if of == name]
    return not spans or max(spans) >= seconds
