"""Signs of the host beside its GPUs: ports, mounts, memory, stuck processes, services, site checks.

Each function is given the facts of one collector, and where it needs a past, that past as an argument: the best rate a
port ever had while active, the mounts that were once writable, the windows of counters. `best_rates`, `writable` and
`counters` say how facts extend it. What facts cannot tell now (a mount that hangs has no free space) is named by
`unseen_ports`, `unseen_mounts` and `unseen_plugins`: a finding about it neither comes nor goes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from gpuwarden.health.model import NODE, Evidence, Key, Severity, Sighting, Subject
from gpuwarden.health.windows import Windows
from gpuwarden_collectors.host_facts import (
    InfinibandFacts,
    MemoryFacts,
    MountFacts,
    PluginFacts,
    PluginResult,
    PluginState,
    PortFacts,
    ProcessesFacts,
    ServiceFacts,
    ServicesFacts,
    StorageFacts,
    StuckProcess,
)

W, F = Severity.WARNING, Severity.FAILURE


def counters(
    infiniband: InfinibandFacts | None, memory: MemoryFacts | None, services: ServicesFacts | None
) -> dict[tuple[str, str], int]:
    """The counters whose growth is asked for below, for `windows.added`: by the name of the thing and the counter."""
    grown: dict[tuple[str, str], int | None] = {}
    for port in infiniband.ports if infiniband else ():
        grown |= {(port.name, name): getattr(port, name) for name in DOWN_COUNTERS}
    for controller in memory.controllers if memory else ():
        grown[controller.name, "uncorrected"] = controller.uncorrected
    for service in services.services if services else ():
        grown[service.unit, "restarts"] = service.restarts
    return {key: value for key, value in grown.items() if value is not None}


# --- InfiniBand and RoCE -------------------------------------------------------------------------------------------

DOWN_COUNTERS = ("link_downed", "carrier_down")
FLAPS, FLAPS_WINDOW = 3, 3 * 3600.0
"""Three times down within three hours: what Azure's health agent takes for a flapping link."""


def port_subject(name: str) -> Subject:
    return Subject("port", part=name)


def best_rates(best: Mapping[str, float], infiniband: InfinibandFacts) -> Mapping[str, float]:
    """By port that was ever active, the highest rate it had then, in Gb/s."""
    active = {port.name: port.rate_gbps or 0.0 for port in infiniband.ports if port.state == "active"}
    risen = {name: rate for name, rate in active.items() if rate > best.get(name, -1.0)}
    return {**best, **risen} if risen else best


def unseen_ports(infiniband: InfinibandFacts) -> frozenset[Subject]:
    return frozenset(port_subject(port.name) for port in infiniband.ports if not port.state)


def infiniband_down(infiniband: InfinibandFacts, best: Mapping[str, float]) -> list[Sighting]:
    """Ports that were once active and are not, or are not there at all: an adapter that is gone takes them along.

    Without any RDMA device (the collector says *absent*) `infiniband` is to be empty, not left out.
    """
    here = {port.name: port for port in infiniband.ports}
    return [
        Sighting(Key("infiniband_down", port_subject(name)), _how_down(here.get(name)))
        for name in best
        if name not in here or here[name].state not in ("active", "")
    ]


def _how_down(port: PortFacts | None) -> Evidence:
    if port is None:
        return {"why": "the port is gone"}
    return {"state": port.state, "physical_state": port.physical_state, "link_layer": port.link_layer}


def infiniband_flapping(infiniband: InfinibandFacts, windows: Windows) -> list[Sighting]:
    """By counters, so that an interruption between two passes counts. A counter that stands at its maximum is blind."""
    sightings = []
    for port in infiniband.ports:
        series = (windows.get((port.name, name)) for name in DOWN_COUNTERS)
        downs = sum(one.growth(FLAPS_WINDOW)[0] for one in series if one is not None)
        if downs >= FLAPS:
            evidence: Evidence = {"downs": downs, "hours": round(FLAPS_WINDOW / 3600)}
            sightings.append(Sighting(Key("infiniband_flapping", port_subject(port.name)), evidence))
    return sightings


def infiniband_rate_low(infiniband: InfinibandFacts, best: Mapping[str, float]) -> list[Sighting]:
    """Slower than this port itself once was: lanes lost, or trained down."""
    return [
        Sighting(
            Key("infiniband_rate_low", port_subject(port.name)),
            {"gbps": port.rate_gbps, "gbps_before": best[port.name]},
        )
        for port in infiniband.ports
        if port.state == "active" and port.rate_gbps is not None and port.rate_gbps < best.get(port.name, 0.0)
    ]


# --- Mounts --------------------------------------------------------------------------------------------------------

FULL_SHARE = 0.95
PLENTY = 100 << 30
"""Bytes. A shared file system of petabytes may be 95 % full for years; one with 100 GiB left is about to stop jobs."""


def mount_subject(path: str) -> Subject:
    return Subject("mount", part=path)


def writable(known: AbstractSet[str], storage: StorageFacts) -> AbstractSet[str]:
    """The paths of mounts that were ever seen writable."""
    return known | {mount.path for mount in storage.mounts if mount.mounted and not mount.read_only}


def unseen_mounts(storage: StorageFacts) -> frozenset[Subject]:
    """Mounts of which nobody can say how full they are."""
    return frozenset(mount_subject(mount.path) for mount in storage.mounts if mount.bytes_total is None)


def disk_full(storage: StorageFacts) -> list[Sighting]:
    """Space as `df` reckons it, what is reserved for root left aside; or inodes. Never more than a warning."""
    return [
        Sighting(Key("disk_full", mount_subject(mount.path)), {**_evidence(mount), **full})
        for mount in storage.mounts
        if not mount.read_only and (full := _full(mount))
    ]


def _full(mount: MountFacts) -> Evidence:
    full: dict[str, float] = {}
    if mount.bytes_total and mount.bytes_free is not None and mount.bytes_available is not None:
        used = mount.bytes_total - mount.bytes_free
        share = used / max(1, used + mount.bytes_available)
        if share >= FULL_SHARE and mount.bytes_available < PLENTY:
            full = {"used_percent": round(100 * share, 1), "bytes_available": mount.bytes_available}
    if mount.inodes_total and mount.inodes_free is not None:
        share = 1 - mount.inodes_free / mount.inodes_total
        if share >= FULL_SHARE:
            full |= {"inodes_used_percent": round(100 * share, 1), "inodes_free": mount.inodes_free}
    return full


def mount_missing(storage: StorageFacts) -> list[Sighting]:
    """Expected and not mounted. One that the kernel mounts on first use is not missing."""
    return [
        Sighting(Key("mount_missing", mount_subject(mount.path)))
        for mount in storage.mounts
        if mount.expected and not mount.mounted and not mount.automount
    ]


def mount_hung(storage: StorageFacts) -> list[Sighting]:
    """It does not answer, or with an error (a stale file handle): jobs that touch it hang or die."""
    sightings = []
    for mount in storage.mounts:
        if mount.hung_for is None and not mount.error:
            continue
        why = mount.error or "does not answer"
        evidence: Evidence = {**_evidence(mount), "why": why, "hung_for": round(mount.hung_for or 0.0)}
        key = Key("mount_hung", mount_subject(mount.path))
        sightings.append(Sighting(key, evidence, F if mount.expected else W))
    return sightings


def mount_read_only(storage: StorageFacts, writable_before: AbstractSet[str]) -> list[Sighting]:
    """The kernel makes a file system read-only when its disk fails under it."""
    return [
        Sighting(Key("mount_read_only", mount_subject(mount.path)), _evidence(mount))
        for mount in storage.mounts
        if mount.read_only and mount.path in writable_before
    ]


def _evidence(mount: MountFacts) -> Evidence:
    return {"type": mount.type, "source": mount.source}


# --- Memory --------------------------------------------------------------------------------------------------------

LOW_SHARE = 0.02


def memory_low(memory: MemoryFacts) -> list[Sighting]:
    """Little memory left of what is not set aside as huge pages: those were taken on purpose."""
    huge = (memory.huge_pages_total or 0) * (memory.huge_page_bytes or 0)
    usable, available = memory.total_bytes - huge, memory.available_bytes
    if available is None or available >= LOW_SHARE * usable:
        return []
    evidence: Evidence = {
        "available_bytes": available, "of_bytes": usable, "swap_free_bytes": memory.swap_free_bytes, "oom_kills": memory.oom_kills,
    }  # fmt: skip
    return [Sighting(Key("memory_low", NODE), evidence)]


def memory_ecc_uncorrectable(memory: MemoryFacts, windows: Windows) -> list[Sighting]:
    """Main memory lost data within the last hour, as the memory controllers counted it."""
    grown = {
        controller.name: series.growth(3600.0)[0]
        for controller in memory.controllers
        if (series := windows.get((controller.name, "uncorrected"))) is not None
    }
    bad = {name: count for name, count in grown.items() if count}
    if not bad:
        return []
    return [
        Sighting(Key("memory_ecc_uncorrectable", NODE), {"uncorrected": sum(bad.values()), "controllers": _list(bad)})
    ]


# --- Processes -----------------------------------------------------------------------------------------------------

STUCK_FOR = 300.0


def process_hung(processes: ProcessesFacts) -> list[Sighting]:
    """Processes that hold a GPU, or are the driver's own, asleep in the kernel for 5 minutes: no signal ends them.

    A job may be stuck in its file system while it holds a GPU, which then is lost but not broken: a warning. A process
    named nvidia… that is stuck is stuck in the driver: a failure.
    """
    stuck = [p for p in processes.stuck if p.seen_for >= STUCK_FOR and (p.gpu or _of_the_driver(p))]
    if not stuck:
        return []
    first = max(stuck, key=lambda process: (_of_the_driver(process), process.seen_for))
    evidence: Evidence = {
        "processes": len(stuck), "pid": first.pid, "comm": first.comm, "seconds": round(first.seen_for),
        "wait_channel": first.wait_channel,
    }  # fmt: skip
    return [Sighting(Key("process_hung", NODE), evidence, F if _of_the_driver(first) else W)]


def _of_the_driver(process: StuckProcess) -> bool:
    return process.comm.startswith("nvidia")


# --- Services ------------------------------------------------------------------------------------------------------

BOOT_GRACE = 300.0
RESTARTS, RESTARTS_WINDOW = 3, 600.0
"""Both as NVSentinel has them for system services."""
FABRIC_MANAGER = "nvidia-fabricmanager.service"


def service_subject(unit: str) -> Subject:
    return Subject("service", part=unit)


def service_down(services: ServicesFacts, windows: Windows, *, nvswitches: bool, uptime: float) -> list[Sighting]:
    """Units that failed, or keep restarting, or that must run and do not: enabled ones, and those of the configuration.

    Without the fabric manager the GPUs of an NVSwitch system cannot be used: there it must run, and is a failure.
    """
    sightings = []
    for service in services.services:
        vital = nvswitches and service.unit == FABRIC_MANAGER
        series = windows.get((service.unit, "restarts"))
        restarts = 0 if series is None else series.growth(RESTARTS_WINDOW)[0]
        why = _why_down(service, restarts, must_run=vital or service.enabled or service.configured)
        if why:
            evidence: Evidence = {"why": why, "state": f"{service.active} ({service.sub})", "restarts": restarts}
            key = Key("service_down", service_subject(service.unit))
            rise = math.inf if uptime < BOOT_GRACE else None
            sightings.append(Sighting(key, evidence, F if vital else W, rise=rise))
    return sightings


def _why_down(service: ServiceFacts, restarts: int, *, must_run: bool) -> str:
    if service.load != "loaded":
        return f"is {service.load or 'unknown to systemd'}" if service.configured else ""
    if service.active == "failed":
        return f"failed: {service.result}"
    if restarts >= RESTARTS:
        return f"restarted {restarts} times within {RESTARTS_WINDOW / 60:.0f} minutes"
    if service.sub == "auto-restart":
        return f"fails to start: {service.result}"
    return "does not run" if must_run and service.active in ("inactive", "deactivating") else ""


# --- Site checks ---------------------------------------------------------------------------------------------------

UNKNOWN_RUNS = 3


def plugin_code(name: str) -> str:
    return f"plugin_{name}"


def unseen_plugins(plugins: PluginFacts) -> frozenset[str]:
    """The codes of site checks that told nothing in their newest run."""
    return frozenset(plugin_code(r.name) for r in plugins.results if r.state is PluginState.UNKNOWN)


def plugin(result: PluginResult) -> list[Sighting]:
    """What one site check says, at its own severity."""
    severity = {PluginState.WARNING: W, PluginState.FAILURE: F}.get(result.state)
    if severity is None:
        return []
    return [Sighting(Key(plugin_code(result.name), NODE), _said(result), severity)]


def plugin_failed(plugins: PluginFacts) -> list[Sighting]:
    """Site checks that told nothing three times in a row: they do not start, do not end, or exit with an odd code."""
    return [
        Sighting(Key("plugin_failed", NODE, result.name), _said(result))
        for result in plugins.results
        if result.unknown_runs >= UNKNOWN_RUNS
    ]


def _said(result: PluginResult) -> Evidence:
    return {"text": result.text, "exit_code": result.exit_code}


def _list(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in counts.items())
