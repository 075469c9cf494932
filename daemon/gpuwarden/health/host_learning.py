"""How the judge's memory of the host beside its GPUs grows: what is learned and forgotten, and the windows of counters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from gpuwarden.health.host_memory import (
    CONTROLLERS_KEPT,
    MOUNTS_KEPT,
    PORTS_KEPT,
    KnownPort,
    forgotten,
    mount_learned,
    mount_subject,
    port_learned,
    port_subject,
    uncorrected_learned,
)
from gpuwarden.health.host_signs import memory_counters, service_counters
from gpuwarden.health.model import Event
from gpuwarden.health.port_signs import port_counters
from gpuwarden.health.state import State
from gpuwarden.health.view import Sight
from gpuwarden.health.windows import Series
from gpuwarden_collectors.base import PassOutcome
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.host_facts import InfinibandFacts, StorageFacts

FORGET_AFTER = 600.0
"""Seconds of uptime before which a mount that is not there is not forgotten: a boot may bring it yet."""

Facts = TypeVar("Facts")


def now_known(sight: Sight, collector: str, facts: Facts | None) -> Facts | None:
    """The facts, if they are fresh and the newest pass gave them."""
    return facts if sight.view.seen(collector).outcome is PassOutcome.OBSERVED else None


def infiniband_now(sight: Sight) -> InfinibandFacts | None:
    """*Absent* says that the kernel has no RDMA device at all: no port is there."""
    if sight.view.infiniband.outcome is PassOutcome.ABSENT:
        return InfinibandFacts()
    return now_known(sight, "infiniband", sight.infiniband)


# --- What is learned and forgotten -----------------------------------------------------------------------------------


def learn_host(state: State, sight: Sight) -> Iterator[Event]:
    """Events for ports that are active, or faster than ever, for mounts that are writable, and for what is no matter any more."""
    if (infiniband := now_known(sight, "infiniband", sight.infiniband)) is not None:
        yield from _ports(state, sight, infiniband)
    if (storage := now_known(sight, "storage", sight.storage)) is not None:
        yield from _mounts(state, sight, storage)


def learn_counts(state: State, sight: Sight) -> Iterator[Event]:
    """Events for uncorrected errors of memory controllers that are in the windows now: a restart counts on from there."""
    memory, known = now_known(sight, "memory", sight.memory), state.host.uncorrected
    for (name, _), count in memory_counters(memory).items() if memory is not None else ():
        controller = name.removeprefix("memory/")
        if known.get(controller) != count and (controller in known or len(known) < CONTROLLERS_KEPT):
            yield uncorrected_learned(controller, count, sight.now, sight.view.boot_id)


def _ports(state: State, sight: Sight, infiniband: InfinibandFacts) -> Iterator[Event]:
    known = state.host.ports
    for name in known:
        device = name.rpartition("/")[0]
        if any(re.match(pattern, device) for pattern in infiniband.excluded):
            yield forgotten(port_subject(name), sight.now, sight.view.boot_id)
    for port in infiniband.ports:
        if port.state != "active" or (port.name not in known and len(known) >= PORTS_KEPT):
            continue
        before = known.get(port.name, KnownPort())
        now = KnownPort(max(before.gbps, port.rate_gbps or 0.0), port.link_layer or before.link_layer)
        if port.name not in known or now != before:
            yield port_learned(port.name, now, sight.now, sight.view.boot_id)


def _mounts(state: State, sight: Sight, storage: StorageFacts) -> Iterator[Event]:
    known = state.host.mounts
    here = {mount.path for mount in storage.mounts if mount.mounted or mount.expected}
    gone = [path for path in known if path not in here and sight.now.boottime >= FORGET_AFTER]
    for path in gone:
        yield forgotten(mount_subject(path), sight.now, sight.view.boot_id)
    for mount in storage.mounts:
        room = mount.path in known or len(known) - len(gone) < MOUNTS_KEPT
        if mount.mounted and not mount.read_only and known.get(mount.path) != mount.source and room:
            yield mount_learned(mount.path, mount.source, sight.now, sight.view.boot_id)


def accept_host(state: State, sight: Sight) -> Iterator[Event]:
    """Events by which the ports are accepted as they are: those that are down are given up, the others are this fast."""
    infiniband = infiniband_now(sight)
    if infiniband is None:
        return
    here = {port.name: port for port in infiniband.ports}
    for name, known in state.host.ports.items():
        port = here.get(name)
        if port is None or port.state not in ("active", ""):
            yield forgotten(port_subject(name), sight.now, sight.view.boot_id)
        elif port.rate_gbps is not None and port.rate_gbps < known.gbps:
            slower = replace(known, gbps=port.rate_gbps)
            yield port_learned(name, slower, sight.now, sight.view.boot_id)


# --- Counters --------------------------------------------------------------------------------------------------------


def counted_host(state: State, sight: Sight) -> State:
    """With the counters of the newest passes in its windows. Those of what is gone, and of nobody any more, are dropped."""
    windows = dict(state.host_windows)
    for kind, at, readings in _readings(sight):
        known = {str(port_subject(name)) for name in state.host.ports} | {name for name, _ in readings}
        for key in [key for key in windows if key[0].startswith(f"{kind}/") and key[0] not in known]:
            del windows[key]
        for key, value in readings.items():
            series = windows.get(key)
            if series is None or at.boottime < series.at:  # the latter: another boot
                windows[key] = _begun(state, key[0], at.boottime, value)
            elif at.boottime > series.at:
                windows[key] = series.add(at.boottime, value)
    return replace(state, host_windows=windows)


def _begun(state: State, name: str, at: float, value: int) -> Series:
    """A new window; for a memory controller, with what was counted since the daemon before this one looked."""
    kind, _, controller = name.partition("/")
    known = state.host.uncorrected.get(controller) if kind == "memory" else None
    return Series.start(at, value) if known is None else Series.start(at, known).add(at, value)


def _readings(sight: Sight) -> Iterator[tuple[str, Stamp, Mapping[tuple[str, str], int]]]:
    infiniband = now_known(sight, "infiniband", sight.infiniband)
    memory = now_known(sight, "memory", sight.memory)
    services = now_known(sight, "services", sight.services)
    if infiniband is not None and sight.view.infiniband.at is not None:
        yield "port", sight.view.infiniband.at, port_counters(infiniband)
    if memory is not None and sight.view.memory.at is not None:
        yield "memory", sight.view.memory.at, memory_counters(memory)
    if services is not None and sight.view.services.at is not None:
        yield "service", sight.view.services.at, service_counters(services)


def followed(state: State, name: str, seconds: float) -> bool:
    """Whether the counters of a thing were followed for so long. One without counters has nothing to wait for."""
    spans = [series.followed for (of, _), series in state.host_windows.items() if of == name]
    return not spans or max(spans) >= seconds
