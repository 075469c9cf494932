"""The detectors of the rows in `conditions.py`.

A collector whose newest pass failed or is too old changes nothing: findings stay, and none is added. A finding whose
subject cannot be read now (a hung mount has no free space) stays too. Every other subject without a problem counts as
examined and healthy, including subjects that no longer exist.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from gpuwarden.health.detection import NOTHING, Detection, Detector, in_two_passes, tracked_detection
from gpuwarden.health.gpu.speed_detectors import SUPERCHIP
from gpuwarden.health.host import adapters, mounts, port_errors, ports, services
from gpuwarden.health.host.learning import followed, infiniband_now, now_known
from gpuwarden.health.host.memory import port_subject
from gpuwarden.health.host.port_downs import FLAPPING, infiniband_flapping, is_young
from gpuwarden.health.memory import Record, State, Track, counts
from gpuwarden.health.model import NODE, Key, Severity, Sighting, Subject
from gpuwarden.health.nvlink.detectors import REGISTERED
from gpuwarden.health.nvlink.fabric_manager import FABRIC_MANAGER, Fabric, undecided
from gpuwarden.health.nvlink.imex import UNIT as IMEX_UNIT
from gpuwarden.health.nvlink.imex import multi_node
from gpuwarden.health.view import Sight
from gpuwarden_collectors.base import NamedFacts, PassOutcome
from gpuwarden_collectors.dataclass import replace
from gpuwarden_collectors.host_facts import (
    InfinibandFacts,
    MemoryFacts,
    PluginFacts,
    ProcessesFacts,
    ServicesFacts,
    StorageFacts,
)
from gpuwarden_collectors.pci_facts import PciKind

BOOT_GRACE = 300.0
"""Seconds of uptime, as in NVSentinel for system services. What starts late in a boot is not down yet."""

_THE_NODE = frozenset((NODE,))

Sightings = Iterable[Sighting]
Seen = tuple[Sightings, AbstractSet[Subject]]
"""The problems that were observed, and the subjects whose state is unknown now."""


def _detector(code: str, kind: type[NamedFacts], see: Callable[[State, Sight, Any], Seen]) -> Detector:
    """Return a detector that passes the newest facts of this kind to `see`."""

    def detect(state: State, sight: Sight) -> Detection:
        facts = _now(kind, sight)
        if facts is None:
            return _unread(code, kind, state, sight)
        sightings, unseen = see(state, sight, facts)
        return tracked_detection(code, state, _in_two_passes(sightings, kind, state, sight), unseen)

    return detect


def _in_two_passes(sightings: Sightings, kind: type[NamedFacts], state: State, sight: Sight) -> Sightings:
    """Yield the sightings. One that only a single pass has shown so far gets an infinite rise time."""
    started = sight.view.seen(kind).started
    for sighting in sightings:
        twice = in_two_passes(state.tracks.get(sighting.key), started, sight.now)
        yield sighting if twice else replace(sighting, rise=math.inf)


def _unread(code: str, kind: type[NamedFacts], state: State, sight: Sight) -> Detection:
    """Return the detection without facts: nothing is examined. If the site disabled the collector, its findings end."""
    return tracked_detection(code, state) if kind.collector in sight.rules.off else NOTHING


def _now(kind: type[NamedFacts], sight: Sight) -> object | None:
    if kind is InfinibandFacts:
        return infiniband_now(sight)
    if kind is PluginFacts and sight.view.seen(PluginFacts).outcome is PassOutcome.ABSENT:
        return PluginFacts()  # no site check is configured
    return now_known(sight, kind)


def _not_while_booting(sight: Sight, sightings: Sightings) -> Sightings:
    booting = sight.now.boottime < BOOT_GRACE
    return (replace(sighting, rise=math.inf) for sighting in sightings) if booting else sightings


# --- Ports ---------------------------------------------------------------------------------------------------------


def _port_down(state: State, sight: Sight, facts: InfinibandFacts) -> Seen:
    down = ports.infiniband_down(facts, state.host.ports)
    return _not_while_booting(sight, down), ports.unseen_ports(facts)


def _rate_low(state: State, _: Sight, facts: InfinibandFacts) -> Seen:
    """Detect ports slower than they were. A port that is down has no rate."""
    known_ports = state.host.ports
    idle = {
        port_subject(port.name)
        for port in facts.ports
        if port.name in known_ports and (port.state != "active" or port.rate_gbps is None)
    }
    return ports.infiniband_rate_low(facts, known_ports), idle


def _flapping(state: State, sight: Sight) -> Detection:
    """Detect flapping ports. Clears once the port was followed for the whole window, or is no longer known."""
    facts, downs, now = infiniband_now(sight), state.port_downs, sight.now.boottime
    if facts is None:
        return _unread(FLAPPING, InfinibandFacts, state, sight)
    subjects = [track.key.subject for track in state.tracks_of(FLAPPING)]
    young = {subject for subject in subjects if subject.part in state.host.ports and is_young(downs, subject.part, now)}
    return tracked_detection(FLAPPING, state, infiniband_flapping(facts, downs, now), young)


def _errors(state: State, sight: Sight, facts: InfinibandFacts) -> Seen:
    """Detect ports with errors. Clears once the port was followed for the longest window, or is no longer known."""
    known_ports, windows = state.host.ports, state.moments.host_windows
    young = {
        track.key.subject
        for track in state.tracks_of("infiniband_errors")
        if track.key.subject.part in known_ports and not followed(windows, str(track.key.subject), port_errors.HOUR)
    }
    sightings = port_errors.infiniband_errors(facts, known_ports, ports.other_roles(known_ports), windows)
    return _not_while_booting(sight, sightings), young


def _adapter_pcie(state: State, _: Sight, facts: InfinibandFacts) -> Seen:
    return adapters.adapter_pcie_degraded(facts, state.host.ports), adapters.unread_adapters(facts)


# --- Mounts --------------------------------------------------------------------------------------------------------


def _full(_: State, sight: Sight, facts: StorageFacts) -> Seen:
    return mounts.disk_full(facts, sight.rules.limits.disk), mounts.unseen_mounts(facts)


def _missing(_: State, sight: Sight, facts: StorageFacts) -> Seen:
    return _not_while_booting(sight, mounts.mount_missing(facts)), frozenset()


def _hung(_: State, __: Sight, facts: StorageFacts) -> Seen:
    return mounts.mount_hung(facts), mounts.unasked_mounts(facts)


def _read_only(state: State, _: Sight, facts: StorageFacts) -> Seen:
    return mounts.mount_read_only(facts, state.host.mounts), frozenset()


# --- Memory, processes, services -----------------------------------------------------------------------------------


def _memory_low(_: State, sight: Sight, facts: MemoryFacts) -> Seen:
    limits = sight.rules.limits
    return (*services.memory_low(facts, limits.memory), *services.swap_full(facts, limits.swap)), frozenset()


def _memory_lost(state: State, sight: Sight, facts: MemoryFacts) -> Seen:
    """Detect uncorrected memory errors: by the controllers, or, where the kernel has no driver for them, by its lines.

    Clears after an hour of following all controllers, or a released latch.
    """
    windows = state.moments.host_windows
    if not facts.controllers:
        return services.memory_failed(_memory_lines(state), sight.now), frozenset()
    names = [name for name, _counter in services.memory_counters(facts)]
    old_enough = all(followed(windows, name, services.ECC_WINDOW) for name in names)
    young = {
        track.key.subject
        for track in state.tracks_of("memory_ecc_uncorrectable")
        if not old_enough and track.released is None
    }
    return services.memory_ecc_uncorrectable(facts, windows), young


def _memory_lines(state: State) -> Record | None:
    """Return the record of processes that the kernel ended for a memory error in this boot.

    None for a superchip, whose GPU memory is memory of the host too: its errors are the GPU's.
    """
    record = state.records.get(Key("memory_failed", NODE))
    if record is None or record.history or not counts(state, record):
        return None
    return None if any(SUPERCHIP.search(pin.name) for pin in state.pins.values()) else record


def _process_hung(_: State, __: Sight, facts: ProcessesFacts) -> Seen:
    """Detect stuck processes. Clears only after a full observation window without a stuck process."""
    young = facts.followed_for is not None and facts.followed_for < services.STUCK_FOR
    return services.process_hung(facts), _THE_NODE if young else frozenset()


def _service_down(state: State, sight: Sight, facts: ServicesFacts) -> Seen:
    """Detect services that are down. One that restarted repeatedly clears only after the whole window of the rule."""
    windows, tracks, in_domain = state.moments.host_windows, state.tracks_of("service_down"), multi_node(sight)
    young = {
        track.key.subject
        for track in tracks
        if _restarted(track) and not followed(windows, str(track.key.subject), services.RESTARTS_WINDOW)
    }
    if not in_domain:  # IMEX is not needed on a single node, where it exits with an error
        facts = ServicesFacts(services=tuple(s for s in facts.services if s.unit != IMEX_UNIT or s.configured))
        young |= {services.service_subject(IMEX_UNIT)} if in_domain is None else set()
    used, completed = _fabric(sight)
    processes = sight.fresh(ProcessesFacts)
    fabric = Fabric(
        switches=_has_switches(sight),
        used=used,
        multi_node=in_domain,
        completed=completed,
        process=None if processes is None else processes.fabric_manager,
        gpus=bool(sight.answering),
    )
    of_it = [s for s in facts.services if s.unit == FABRIC_MANAGER]
    if any(undecided(service, fabric) for service in of_it):
        young.add(services.service_subject(FABRIC_MANAGER))
        facts = ServicesFacts(services=tuple(s for s in facts.services if s.unit != FABRIC_MANAGER))
    failed = {track.key.subject for track in tracks if track.severity is Severity.FAILURE}
    return _not_while_booting(sight, services.service_down(facts, windows, fabric, failed)), young


def _has_switches(sight: Sight) -> bool | None:
    pci = sight.view.pci.facts
    if pci is None:
        return None
    return any(device.kind is PciKind.SWITCH for device in pci.devices)


def _fabric(sight: Sight) -> tuple[bool | None, bool | None]:
    """Return whether any GPU reports an NVLink fabric (not all switches are on the PCI bus), and whether all that do
    are registered in it. Each is None while unknown.
    """
    answered = [facts.readings for facts in sight.answering if facts.readings.fabric_state is not None]
    using = [readings for readings in answered if readings.fabric_state]
    completed = all(readings.fabric_state == REGISTERED and not readings.fabric_status for readings in using)
    return (bool(using) if answered else None), (completed if using else None)


def _restarted(track: Track) -> bool:
    restarts = track.evidence.get("restarts")
    return isinstance(restarts, int) and restarts >= services.RESTARTS


# --- Site checks ---------------------------------------------------------------------------------------------------


def _plugin_failed(state: State, sight: Sight) -> Detection:
    """Detect site checks without a result. Clears when the check gives a result, or is no longer configured."""
    facts = _now(PluginFacts, sight)
    if not isinstance(facts, PluginFacts):
        return _unread("plugin_failed", PluginFacts, state, sight)
    reported = {result.name for result in facts.results if services.is_conclusive(result, sight.now)}
    unreported = {services.plugin_subject(name) for name in set(facts.names) - reported}
    return tracked_detection("plugin_failed", state, services.plugin_failed(facts, sight.now), unreported)


def family(state: State, sight: Sight) -> Mapping[str, Detection]:
    """Return the detections of site checks by code: checks with a new result, and removed checks with a finding."""
    facts = _now(PluginFacts, sight)
    if not isinstance(facts, PluginFacts):
        return {}
    reported = {services.plugin_code(r.name): r for r in facts.results if services.is_conclusive(r, sight.now)}
    configured = {services.plugin_code(name) for name in facts.names}
    over = {key.code for key in state.tracks if _of_a_plugin(key.code)} - configured
    detections = {code: tracked_detection(code, state, services.plugin(result)) for code, result in reported.items()}
    return {**detections, **{code: tracked_detection(code, state) for code in sorted(over)}}


def _of_a_plugin(code: str) -> bool:
    return code.startswith(services.plugin_code("")) and code != "plugin_failed"


_TABLE: tuple[tuple[str, type[NamedFacts], Callable[[State, Sight, Any], Seen]], ...] = (
    ("infiniband_down", InfinibandFacts, _port_down),
    ("infiniband_rate_low", InfinibandFacts, _rate_low),
    ("infiniband_errors", InfinibandFacts, _errors),
    ("adapter_pcie_degraded", InfinibandFacts, _adapter_pcie),
    ("disk_full", StorageFacts, _full),
    ("mount_missing", StorageFacts, _missing),
    ("mount_hung", StorageFacts, _hung),
    ("mount_read_only", StorageFacts, _read_only),
    ("memory_low", MemoryFacts, _memory_low),
    ("memory_ecc_uncorrectable", MemoryFacts, _memory_lost),
    ("process_hung", ProcessesFacts, _process_hung),
    ("service_down", ServicesFacts, _service_down),
)

DETECTORS: Mapping[str, Detector] = {
    **{code: _detector(code, facts, see) for code, facts, see in _TABLE},
    FLAPPING: _flapping,
    "plugin_failed": _plugin_failed,
}
