"""Signs of the host beside its GPUs, ports and mounts: memory, stuck processes, services, site checks.

Each function is given the facts of one collector, and where it needs a past, the windows of counters.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from functools import lru_cache

from gpuwarden.health.host.limits import MemoryLimits, SwapLimits
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
    """The counters whose growth is used below, by controller and name of the counter."""
    return {
        (f"memory/{controller.name}", "uncorrected"): controller.uncorrected
        for controller in memory.controllers
        if controller.uncorrected is not None
    }


def memory_low(memory: MemoryFacts, limits: MemoryLimits) -> list[Sighting]:
    """Little memory left of what is not set aside as huge pages: those were taken on purpose."""
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
    """Swap space used beyond the site's limit. Without a limit there is no sighting."""
    total, free = memory.swap_total_bytes, memory.swap_free_bytes
    if limits.used_percent is None or not total or free is None:
        return []
    percent = 100 * (total - free) / total
    if percent < limits.used_percent:
        return []
    evidence: Evidence = {"used_percent": round(percent, 1), "swap_free_bytes": free, "of_bytes": total}
    return [Sighting(Key("memory_low", NODE, "swap"), evidence)]


def memory_ecc_uncorrectable(memory: MemoryFacts, windows: Windows) -> list[Sighting]:
    """Main memory lost data within the last hour, as the memory controllers counted it."""
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


def _list(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in counts.items())


# --- Processes -----------------------------------------------------------------------------------------------------

STUCK_FOR = 300.0
USERS_FROM = 1000
"""Numbers of people's accounts begin here (SYS_UID_MAX in login.defs(5) is 999)."""


def process_hung(processes: ProcessesFacts) -> list[Sighting]:
    """Processes that hold a GPU, or are the driver's own, asleep in the kernel for 5 minutes: no signal ends them.

    A job may be stuck in its file system while it holds a GPU, which then is lost but not broken: a warning. A process
    named nvidia… that is stuck is stuck in the driver, and so is a worker of `gpuwarden test`: a failure. Anybody may name
    a process so, and have it sleep (vfork(2), a file system of his own); one of a person's account is therefore a warning. A driver that
    hangs is a failure by the readings, too.
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
"""As NVSentinel has them for system services."""


@lru_cache(maxsize=4096)
def service_subject(unit: str) -> Subject:
    return Subject("service", part=unit)


def service_counters(services: ServicesFacts) -> dict[tuple[str, str], int]:
    """The counters whose growth is used below, by the unit as a subject and the name of the counter."""
    return {
        (str(service_subject(service.unit)), "restarts"): service.restarts
        for service in services.services
        if service.restarts is not None
    }


def service_down(
    services: ServicesFacts, windows: Windows, fabric: Fabric, failed: Container[Subject] = ()
) -> list[Sighting]:
    """Units that failed, or keep restarting, or that must run and do not: enabled ones, and those of the configuration.

    `failed`: those that have a failure already. The fabric manager has a table of its own (`fabric_manager.py`).
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
    """True if the newest run of the check gave a result, not too long ago."""
    return result.state is not PluginState.UNKNOWN and not _overdue(result, now)


def _overdue(result: PluginResult, now: Stamp) -> bool:
    return result.fresh_for is not None and now.boottime - result.at.boottime > result.fresh_for


def plugin(result: PluginResult) -> list[Sighting]:
    """Sighting of one site check's result, at the severity that the check reports."""
    severity = {PluginState.WARNING: W, PluginState.FAILURE: F}.get(result.state)
    if severity is None:
        return []
    evidence: Evidence = {"text": result.text, "exit_code": result.exit_code}
    return [Sighting(Key(plugin_code(result.name), NODE), evidence, severity)]


def plugin_failed(plugins: PluginFacts, now: Stamp) -> list[Sighting]:
    """Site checks that gave no result three times in a row: they do not start, do not end, or exit with an odd code.

    Or that have not run for far longer than they should.
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
