"""What the facts of a host mean: memory, stuck processes, services, site checks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from gpuwarden.health.host import services as service_detectors
from gpuwarden.health.host.limits import MemoryLimits, SwapLimits
from gpuwarden.health.model import NODE, Severity, Sighting
from gpuwarden.health.nvlink.fabric_manager import FABRIC_MANAGER, Fabric, undecided
from gpuwarden.health.windows import Windows, added
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.host_facts import (
    MemoryController,
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
HOUR = 3600.0


def parts(sightings: Iterable[Sighting]) -> list[str]:
    return [sighting.key.subject.part for sighting in sightings]


def grown(key: tuple[str, str], samples: Mapping[float, int]) -> Windows:
    windows: Windows = {}
    for at, value in samples.items():
        windows = added(windows, [(key, at, value)])
    return windows


# --- Memory --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("memory", "low"),
    [
        (MemoryFacts(total_bytes=1000, available_bytes=20), False),
        (MemoryFacts(total_bytes=1000, available_bytes=19), True),
        (MemoryFacts(total_bytes=1000, available_bytes=None), False),
        (MemoryFacts(total_bytes=1000, available_bytes=10, huge_pages_total=9, huge_page_bytes=100), False),
        (MemoryFacts(total_bytes=1000, available_bytes=1, huge_pages_total=9, huge_page_bytes=100), True),
    ],
)
def test_memory_is_low_below_two_percent_of_what_is_not_set_aside(memory: MemoryFacts, *, low: bool) -> None:
    assert bool(service_detectors.memory_low(memory, MemoryLimits())) is low


def test_a_site_sets_from_where_on_memory_counts_as_used_up() -> None:
    memory = MemoryFacts(total_bytes=1000, available_bytes=99)
    assert service_detectors.memory_low(memory, MemoryLimits(used_percent=90))
    assert not service_detectors.memory_low(memory, MemoryLimits(used_percent=91))


@pytest.mark.parametrize(
    ("limit", "total", "free", "full"),
    [
        (None, 1000, 0, False),
        (80, 1000, 201, False),
        (80, 1000, 200, True),
        (80, 0, 0, False),
        (80, None, None, False),
        (80, 1000, None, False),
    ],
)
def test_swap_is_judged_only_by_a_limit_of_the_site(
    limit: int | None, total: int | None, free: int | None, *, full: bool
) -> None:
    memory = MemoryFacts(total_bytes=1000, swap_total_bytes=total, swap_free_bytes=free)
    assert bool(service_detectors.swap_full(memory, SwapLimits(used_percent=limit))) is full


def test_an_uncorrectable_error_counts_when_it_occurs() -> None:
    memory = MemoryFacts(
        total_bytes=1, controllers=tuple(MemoryController(name=f"mc{n}", uncorrected=n) for n in range(2))
    )
    windows = {
        **grown(("memory/mc0", "uncorrected"), {0: 3, 60: 3}),
        **grown(("memory/mc1", "uncorrected"), {0: 0, 60: 2}),
    }
    (sighting,) = service_detectors.memory_ecc_uncorrectable(memory, windows)
    assert sighting.evidence == {"uncorrected": 2, "controllers": "mc1: 2"}
    assert service_detectors.memory_ecc_uncorrectable(memory, grown(("memory/mc0", "uncorrected"), {0: 3, 60: 3})) == []
    assert service_detectors.memory_ecc_uncorrectable(memory, {}) == []


# --- Processes -----------------------------------------------------------------------------------------------------


def stuck(comm: str, seconds: float, *, gpu: bool | None, pid: int = 7, uid: int | None = 0) -> StuckProcess:
    return StuckProcess(pid=pid, comm=comm, seen_for=seconds, gpu=gpu, uid=uid)


@pytest.mark.parametrize(
    ("processes", "severity"),
    [
        ((), None),
        ((stuck("train", 299.0, gpu=True),), None),
        ((stuck("train", 300.0, gpu=True),), W),
        ((stuck("tar", 9999.0, gpu=False),), None),  # its file system hangs, which is another finding
        ((stuck("python", 9999.0, gpu=None),), None),
        ((stuck("nvidia-smi", 300.0, gpu=None),), F),
        ((stuck("gw-test", 300.0, gpu=None),), F),  # an active test's, which only the driver can hold
        ((stuck("nvidia-modeset/", 300.0, gpu=False),), F),
        ((stuck("nvidia-persiste", 300.0, gpu=None, uid=113),), F),
        ((stuck("nvidia-smi", 300.0, gpu=True, uid=1000),), W),  # a user's may wait for his file system, or pretend
        ((stuck("gw-test", 300.0, gpu=None, uid=1000),), W),
        ((stuck("nvidia-smi", 300.0, gpu=True, uid=None),), F),  # a trace of before
        ((stuck("nvidia-smi", 900.0, gpu=True, uid=1000), stuck("nvidia-smi", 300.0, gpu=True)), F),
        ((stuck("nvidia-smi", 10.0, gpu=True), stuck("train", 400.0, gpu=True)), W),
        ((stuck("train", 900.0, gpu=True), stuck("nvidia-smi", 300.0, gpu=True)), F),
    ],
)
def test_a_process_that_holds_a_gpu_and_cannot_be_ended_warns_and_one_of_the_driver_fails(
    processes: tuple[StuckProcess, ...], severity: Severity | None
) -> None:
    sightings = service_detectors.process_hung(ProcessesFacts(stuck=processes))
    assert [sighting.severity for sighting in sightings] == ([] if severity is None else [severity])


def test_all_processes_are_one_finding_that_names_the_worst() -> None:
    many = (
        *(stuck("train", 600.0 + n, gpu=True, pid=n) for n in range(5)),
        stuck("nvidia-smi", 400.0, gpu=True, pid=99),
    )
    (sighting,) = service_detectors.process_hung(ProcessesFacts(stuck=many))
    assert sighting.key.subject == NODE
    assert (sighting.evidence["processes"], sighting.evidence["pid"]) == (6, 99)


# --- Services ------------------------------------------------------------------------------------------------------


def service(active: str, sub: str = "", **more: Any) -> ServiceFacts:
    facts: dict[str, Any] = {
        "unit": "nvidia-dcgm.service",
        "load": "loaded",
        "active": active,
        "sub": sub,
        "enabled": True,
    }
    return ServiceFacts(**{**facts, **more})


def down(facts: ServiceFacts, fabric: Fabric | None = None, *, windows: Windows | None = None) -> Any:
    services = ServicesFacts(services=(facts,))
    sightings = service_detectors.service_down(services, windows or {}, fabric or Fabric(switches=False, used=True))
    return [(sighting.severity, sighting.evidence["why"]) for sighting in sightings]


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (service("active", "running"), None),
        (service("activating", "start"), None),
        (service("reloading"), None),
        (service("inactive", "dead"), "does not run"),
        (service("inactive", "dead", enabled=False), None),  # installed and not wanted
        (service("inactive", "dead", enabled=False, configured=True), "does not run"),
        (service("failed", "failed", result="exit-code", enabled=False), "failed: exit-code"),
        (service("activating", "auto-restart", result="signal"), "fails to start: signal"),
        (service("inactive", load="masked", enabled=False), None),
        (service("inactive", load="masked", enabled=False, configured=True), "is masked"),
        (service("inactive", load="not-found", enabled=False, configured=True), "is not-found"),
        (ServiceFacts(unit="odd.service"), None),
    ],
)
def test_a_service_is_down_when_it_failed_or_must_run_and_does_not(facts: ServiceFacts, why: str | None) -> None:
    assert down(facts) == ([] if why is None else [(W, why)])


def test_without_the_fabric_manager_an_nvswitch_system_fails() -> None:
    idle = service("inactive", "dead", unit=FABRIC_MANAGER, enabled=False)
    assert down(idle) == []
    assert down(idle, Fabric(switches=True, process=False)) == [(F, "does not run")]
    assert down(service("failed", unit=FABRIC_MANAGER, result="signal")) == [(W, "failed: signal")]


ENABLED = service("failed", "failed", unit=FABRIC_MANAGER, result="exit-code")
STOPPED = service("inactive", "dead", unit=FABRIC_MANAGER, enabled=False)
FAILED = replace(ENABLED, enabled=False)
LOOPS = service("activating", "auto-restart", unit=FABRIC_MANAGER, result="signal")


@pytest.mark.parametrize("completed", [True, False, None])
@pytest.mark.parametrize(
    ("unit", "process", "severity"),
    [
        (ENABLED, False, F),
        (ENABLED, True, W),
        (ENABLED, None, W),
        (replace(STOPPED, enabled=True), False, F),
        (replace(STOPPED, configured=True), False, F),
        (LOOPS, False, F),
        (LOOPS, True, F),
        (STOPPED, True, None),
        (FAILED, True, None),
    ],
)
def test_enabled_fabric_manager_is_judged_by_its_process_alone(
    unit: ServiceFacts, process: bool | None, severity: Severity | None, completed: bool | None
) -> None:
    fabric = Fabric(switches=True, used=completed is not None, completed=completed, process=process)
    assert not undecided(unit, fabric)
    assert [grade for grade, _ in down(unit, fabric)] == ([] if severity is None else [severity])


@pytest.mark.parametrize(
    ("unit", "completed", "process", "severity"),
    [
        (STOPPED, True, False, None),
        (STOPPED, True, None, None),
        (FAILED, True, False, W),
        (FAILED, True, None, W),
        (STOPPED, False, False, F),
        (STOPPED, None, False, F),  # A100: its GPUs report nothing of a fabric
        (FAILED, None, False, F),
    ],
)
def test_disabled_fabric_manager_is_none_to_miss_where_gpus_are_registered(
    unit: ServiceFacts, completed: bool | None, process: bool | None, severity: Severity | None
) -> None:
    fabric = Fabric(switches=True, used=completed is not None, completed=completed, process=process)
    assert not undecided(unit, fabric)
    assert [grade for grade, _ in down(unit, fabric)] == ([] if severity is None else [severity])


@pytest.mark.parametrize(
    ("unit", "fabric", "expected"),
    [
        (STOPPED, Fabric(switches=True, used=True, completed=False), True),
        (STOPPED, Fabric(switches=True), True),
        (STOPPED, Fabric(switches=True, process=False, gpus=False), True),  # its container waits for the driver
        (ENABLED, Fabric(switches=True), False),
        (ENABLED, Fabric(), True),
        (ENABLED, Fabric(switches=False), True),
        (ENABLED, Fabric(switches=False, used=False), False),
    ],
)
def test_fabric_manager_is_undecided_where_processes_are_hidden_or_nothing_needs_it_yet(
    unit: ServiceFacts, fabric: Fabric, *, expected: bool
) -> None:
    assert undecided(unit, fabric) is expected


def test_a_failure_of_the_fabric_manager_lasts_while_processes_are_hidden() -> None:
    services, hidden = ServicesFacts(services=(ENABLED,)), Fabric(switches=True, used=True, completed=True)
    (sighting,) = service_detectors.service_down(
        services, {}, hidden, {service_detectors.service_subject(FABRIC_MANAGER)}
    )
    assert sighting.severity is F


def test_without_a_fabric_a_missing_manager_is_reported_only_if_configured() -> None:
    ended, none = service("failed", unit=FABRIC_MANAGER, result="exit-code"), Fabric(switches=False, used=False)
    assert down(ended, none) == []
    assert down(replace(ended, configured=True), none) == [(W, "failed: exit-code")]
    assert down(service("failed", result="exit-code"), none) == [(W, "failed: exit-code")]


def test_a_service_that_restarts_again_and_again_is_down_even_while_it_runs() -> None:
    windows = grown(("service/nvidia-dcgm.service", "restarts"), {0: 4, 300: 6, 500: 7})
    assert down(service("active", "running"), windows=windows) == [(W, "restarted 3 times within 10 minutes")]
    old = grown(("service/nvidia-dcgm.service", "restarts"), {0: 4, 300: 7, 5000: 7})
    assert down(service("active", "running"), windows=old) == []


# --- Site checks ---------------------------------------------------------------------------------------------------


def result_of(name: str, state: PluginState, unknown_runs: int = 0) -> PluginResult:
    return PluginResult(name=name, state=state, at=Stamp(1.0, 2.0), text="so", exit_code=1, unknown_runs=unknown_runs)


def test_a_site_check_speaks_at_its_own_severity() -> None:
    states = (PluginState.OK, PluginState.WARNING, PluginState.FAILURE, PluginState.UNKNOWN)
    sightings = [s for state in states for s in service_detectors.plugin(result_of("nhc", state))]
    assert [(str(s.key), s.severity, s.evidence["text"]) for s in sightings] == [
        ("plugin_nhc@node", W, "so"),
        ("plugin_nhc@node", F, "so"),
    ]


def test_a_site_check_with_three_inconclusive_runs_in_a_row_failed() -> None:
    plugins = PluginFacts(
        results=(
            result_of("fine", PluginState.OK),
            result_of("new", PluginState.UNKNOWN, 2),
            result_of("bad", PluginState.UNKNOWN, 3),
        )
    )
    now = Stamp(10.0, 11.0)
    assert [str(sighting.key) for sighting in service_detectors.plugin_failed(plugins, now)] == [
        "plugin_failed@plugin/bad"
    ]
    assert [service_detectors.is_conclusive(result, now) for result in plugins.results] == [True, False, False]


def test_a_site_check_that_has_not_run_for_long_failed_and_its_old_result_is_dropped() -> None:
    result = replace(result_of("slow", PluginState.FAILURE), fresh_for=210.0)
    plugins = PluginFacts(results=(result,))
    for uptime, is_conclusive, why in ((211.0, True, []), (212.0, False, ["has not run for 211 s"])):
        now = Stamp(uptime, uptime)
        assert service_detectors.is_conclusive(result, now) is is_conclusive
        assert [s.evidence["why"] for s in service_detectors.plugin_failed(plugins, now)] == why


# --- Counters ------------------------------------------------------------------------------------------------------


def test_the_counters_are_those_that_are_known() -> None:
    memory = MemoryFacts(
        total_bytes=1,
        controllers=(MemoryController(name="mc0", corrected=9, uncorrected=1), MemoryController(name="mc1")),
    )
    services = ServicesFacts(services=(ServiceFacts(unit="a.service", restarts=3), ServiceFacts(unit="b.mount")))
    assert service_detectors.memory_counters(memory) == {("memory/mc0", "uncorrected"): 1}
    assert service_detectors.service_counters(services) == {("service/a.service", "restarts"): 3}
