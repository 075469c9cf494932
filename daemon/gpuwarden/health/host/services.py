"""Sightings of the host other than GPUs, ports and mounts: memory, stuck processes, services, site checks."""

from __future__ import annotations

from collections.abc import Container, Mapping
from functools import lru_cache

from gpuwarden.health.host.limits import MemoryLimits, SwapLimits
from gpuwarden.health.memory import Record
from gpuwarden.health.model import NODE, Evidence, Key, Severity, Sighting, Subject
from gpuwarden.health.nvlink.fabric_manager import FABRIC_MANAGER, PROCESS, Fabric, severity_down, wanted
from gpuwarden.health.windows import Windows
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.host_facts import (
    TESTER,
    MemoryFacts,
    PluginFacts,
    PluginResult,
    PluginState,
    ProcessesFacts,
    ServiceFacts,
    ServicesFacts,
    StuckProcess,
)

W, F = Severity.WARNING, Severity.FAILURE

# --- Memory --------------------------------------------------------------------------------------------------------

ECC_WINDOW = 3600.0


def memory_counters(memory: MemoryFacts) -> dict[tuple[str, str], int]:
    """Return the counters whose growth is judged below, by controller and name of the counter."""
    return {
        (f"memory/{controller.name}", "uncorrected"): controller.uncorrected
        for controller in memory.controllers
        if controller.uncorrected is not None
    }


def memory_low(memory: MemoryFacts, limits: MemoryLimits) -> list[Sighting]:
    """Return a sighting of low memory. Huge pages are left out, since they were reserved on purpose."""
    huge = (memory.huge_pages_total or 0) * (memory.huge_page_bytes or 0)
    usable, available = memory.total_bytes - huge, memory.available_bytes
    if available is None or 100 * available >= (100 - limits.used_percent) * usable:
        return []
    evidence: Evidence = {
        "available_bytes": available,
        "of_bytes": usable,
        "swap_free_bytes": memory.swap_free_bytes,
        "oom_kills": memory.oom_kills,
    }
    return [Sighting(Key("memory_low", NODE), evidence)]


def swap_full(memory: MemoryFacts, limits: SwapLimits) -> list[Sighting]:
    """Return a sighting of swap usage at or above the site's limit. Without a limit there is no sighting."""
    total, free = memory.swap_total_bytes, memory.swap_free_bytes
    if limits.used_percent is None or not total or free is None:
        return []
    percent = 100 * (total - free) / total
    if percent < limits.used_percent:
        return []
    evidence: Evidence = {"used_percent": round(percent, 1), "swap_free_bytes": free, "of_bytes": total}
    return [Sighting(Key("memory_low", NODE, "swap"), evidence)]


def memory_ecc_uncorrectable(memory: MemoryFacts, windows: Windows) -> list[Sighting]:
    """Return a sighting of uncorrected errors that the memory controllers counted within the last hour."""
    grown = {
        name.removeprefix("memory/"): windows[name, counter].growth(ECC_WINDOW)[0]
        for name, counter in memory_counters(memory)
        if (name, counter) in windows
    }
    bad = {name: count for name, count in grown.items() if count}
    if not bad:
        return []
    return [
        Sighting(Key("memory_ecc_uncorrectable", NODE), {"uncorrected": sum(bad.values()), "controllers": _list(bad)})
    ]


def memory_failed(lines: Record | None, now: Stamp) -> list[Sighting]:
    """Return a sighting of processes that the kernel ended for a memory error within the last hour."""
    if lines is None or now.boottime - lines.last.boottime > ECC_WINDOW:
        return []
    return [Sighting(Key("memory_ecc_uncorrectable", NODE), {"text": lines.text})]


def _list(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in counts.items())


# --- Processes -----------------------------------------------------------------------------------------------------

STUCK_FOR = 300.0
USERS_FROM = 1000
"""First UID of user accounts (SYS_UID_MAX in login.defs(5) is 999)."""


def process_hung(processes: ProcessesFacts) -> list[Sighting]:
    """Return a sighting of processes stuck in the kernel for 5 minutes that hold a GPU or belong to the driver.

    A job may be stuck in its file system while it holds a GPU, which is then unusable but not broken: a warning. A
    stuck process named nvidia…, or a worker of `gpuwarden test`, is stuck in the driver: a failure. Any user can create
    such a process (vfork(2), a FUSE file system), so one of a user account is a warning.
    """
    stuck = [p for p in processes.stuck if p.seen_for >= STUCK_FOR and (p.gpu or _named_as_the_driver(p))]
    if not stuck:
        return []
    first = max(stuck, key=lambda process: (_of_the_driver(process), process.seen_for))
    evidence: Evidence = {
        "processes": len(stuck),
        "pid": first.pid,
        "comm": first.comm,
        "seconds": round(first.seen_for),
        "wait_channel": first.wait_channel,
    }
    return [Sighting(Key("process_hung", NODE), evidence, F if _of_the_driver(first) else W)]


def _of_the_driver(process: StuckProcess) -> bool:
    return _named_as_the_driver(process) and (process.uid is None or process.uid < USERS_FROM)


def _named_as_the_driver(process: StuckProcess) -> bool:
    return process.comm.startswith("nvidia") or process.comm == TESTER


# --- Services ------------------------------------------------------------------------------------------------------

RESTARTS, RESTARTS_WINDOW = 3, 600.0
"""The limits of NVSentinel for system services."""


@lru_cache(maxsize=4096)
def service_subject(unit: str) -> Subject:
    return Subject("service", part=unit)


def service_counters(services: ServicesFacts) -> dict[tuple[str, str], int]:
    """Return the counters whose growth is judged below, by key of the unit and name of the counter."""
    return {
        (str(service_subject(service.unit)), "restarts"): service.restarts
        for service in services.services
        if service.restarts is not None
    }


def service_down(
    services: ServicesFacts, windows: Windows, fabric: Fabric, failed: Container[Subject] = ()
) -> list[Sighting]:
    """Return units that failed, keep restarting, or do not run although they are enabled or configured.

    `failed`: units that have a failure already. Rules for the fabric manager are in `fabric_manager.py`.
    """
    sightings = []
    for service in services.services:
        subject = service_subject(service.unit)
        series = windows.get((str(subject), "restarts"))
        restarts = 0 if series is None else series.growth(RESTARTS_WINDOW)[0]
        manager = service.unit == FABRIC_MANAGER
        why = _why_down(service, restarts, must_run=wanted(service) or (manager and fabric.switches is True))
        severity = severity_down(service, fabric, failed=subject in failed) if manager else W
        if why and severity is not None:
            evidence: Evidence = {"why": why, "state": f"{service.active} ({service.sub})", "restarts": restarts}
            process = {"process": PROCESS[fabric.process]} if manager and fabric.switches else {}
            sightings.append(Sighting(Key("service_down", subject), {**evidence, **process}, severity))
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


def plugin_subject(name: str) -> Subject:
    return Subject("plugin", part=name)


def is_conclusive(result: PluginResult, now: Stamp) -> bool:
    """Return True if the newest run of the check gave a result that is not too old."""
    return result.state is not PluginState.UNKNOWN and not _overdue(result, now)


def _overdue(result: PluginResult, now: Stamp) -> bool:
    return result.fresh_for is not None and now.boottime - result.at.boottime > result.fresh_for


def plugin(result: PluginResult) -> list[Sighting]:
    """Return the sighting of a site check's result, with the severity that the check reports."""
    severity = {PluginState.WARNING: W, PluginState.FAILURE: F}.get(result.state)
    if severity is None:
        return []
    evidence: Evidence = {"text": result.text, "exit_code": result.exit_code}
    return [Sighting(Key(plugin_code(result.name), NODE), evidence, severity)]


def plugin_failed(plugins: PluginFacts, now: Stamp) -> list[Sighting]:
    """Return site checks that gave no result three times in a row, or have not run for too long.

    A check gives no result if it does not start, does not end, or exits with an undefined code.
    """
    return [
        Sighting(Key("plugin_failed", plugin_subject(result.name)), {"why": why, "exit_code": result.exit_code})
        for result in plugins.results
        if (why := _why_failed(result, now))
    ]


def _why_failed(result: PluginResult, now: Stamp) -> str:
    if _overdue(result, now):
        return f"has not run for {now.boottime - result.at.boottime:.0f} s"
    if result.unknown_runs < UNKNOWN_RUNS:
        return ""
    return result.text or f"exits with {result.exit_code}, which is neither ok, warning nor failure"
