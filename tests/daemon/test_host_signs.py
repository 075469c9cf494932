"""What the facts of a host mean: ports, mounts, memory, stuck processes, services, site checks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from gpuwarden.health import host_signs
from gpuwarden.health.model import NODE, Severity, Sighting, Subject
from gpuwarden.health.windows import Windows, added
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.host_facts import (
    InfinibandFacts,
    MemoryController,
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
HOUR = 3600.0


def parts(sightings: Iterable[Sighting]) -> list[str]:
    return [sighting.key.subject.part for sighting in sightings]


def grown(key: tuple[str, str], samples: Mapping[float, int]) -> Windows:
    windows: Windows = {}
    for at, value in samples.items():
        windows = added(windows, at, {key: value})
    return windows


# --- InfiniBand and RoCE -------------------------------------------------------------------------------------------


def ports(**states: str) -> InfinibandFacts:
    return InfinibandFacts(
        ports=tuple(PortFacts(device=device, port=1, state=state, rate_gbps=400.0) for device, state in states.items())
    )


@pytest.mark.parametrize(
    ("now", "down"),
    [
        (ports(mlx5_0="active", mlx5_1="active"), []),
        (ports(mlx5_0="down", mlx5_1="active"), ["mlx5_0/1"]),
        (ports(mlx5_0="init", mlx5_1="armed"), ["mlx5_0/1", "mlx5_1/1"]),
        (ports(mlx5_0="active"), ["mlx5_1/1"]),  # the adapter is gone
        (InfinibandFacts(), ["mlx5_0/1", "mlx5_1/1"]),
        (ports(mlx5_0="", mlx5_1="active"), []),  # nobody knows
        (ports(mlx5_0="active", mlx5_1="active", mlx5_9="down"), []),  # never was up: no cable, by design
    ],
)
def test_a_port_that_was_once_active_and_is_not_is_down(now: InfinibandFacts, down: list[str]) -> None:
    best = host_signs.best_rates({}, ports(mlx5_0="active", mlx5_1="active", mlx5_9="down"))
    sightings = host_signs.infiniband_down(now, best)
    assert parts(sightings) == down
    assert all(sighting.key.subject.kind == "port" for sighting in sightings)


def test_the_best_rate_of_a_port_is_remembered_from_when_it_was_active() -> None:
    def at(rate: float | None, state: str = "active") -> InfinibandFacts:
        return InfinibandFacts(ports=(PortFacts(device="mlx5_0", port=1, state=state, rate_gbps=rate),))

    best: Mapping[str, float] = {}
    for facts in (at(None), at(200.0), at(400.0), at(100.0), at(800.0, "down")):
        best = host_signs.best_rates(best, facts)
    assert best == {"mlx5_0/1": 400.0}
    assert host_signs.best_rates(best, at(400.0)) is best
    assert host_signs.infiniband_rate_low(at(400.0), best) == []
    (low,) = host_signs.infiniband_rate_low(at(200.0), best)
    assert low.evidence == {"gbps": 200.0, "gbps_before": 400.0}
    assert host_signs.infiniband_rate_low(at(10.0, "down"), best) == []


@pytest.mark.parametrize("counter", ["link_downed", "carrier_down"])
@pytest.mark.parametrize(
    ("samples", "downs"),
    [
        ({0: 7, HOUR: 7}, 0),
        ({0: 7, HOUR: 8, 2 * HOUR: 9}, 0),
        ({0: 7, HOUR: 8, 2 * HOUR: 10}, 3),
        ({0: 7, 30: 10}, 3),  # all within one pass: no state was ever seen to change
        ({0: 250, 60: 255, 120: 2}, 7),  # the driver was loaded anew, and it goes on
        ({0: 0, HOUR: 9, 10 * HOUR: 9}, 0),  # long ago
    ],
)
def test_a_port_that_went_down_three_times_within_three_hours_is_flapping(
    counter: str, samples: Mapping[float, int], downs: int
) -> None:
    windows = grown(("mlx5_0/1", counter), samples)
    sightings = host_signs.infiniband_flapping(ports(mlx5_0="active", mlx5_1="active"), windows)
    assert [sighting.evidence["downs"] for sighting in sightings] == ([downs] if downs else [])


def test_a_port_whose_state_cannot_be_read_is_unseen() -> None:
    assert host_signs.unseen_ports(ports(mlx5_0="", mlx5_1="down")) == {Subject("port", part="mlx5_0/1")}


# --- Mounts --------------------------------------------------------------------------------------------------------

GIB = 1 << 30


def mount(path: str = "/data", **more: Any) -> MountFacts:
    numbers: dict[str, Any] = {
        "bytes_total": 1000 * GIB, "bytes_free": 500 * GIB, "bytes_available": 450 * GIB,
        "inodes_total": 1000, "inodes_free": 900,
    }  # fmt: skip
    return MountFacts(path=path, **{**numbers, **more})


def storage(*mounts: MountFacts) -> StorageFacts:
    return StorageFacts(mounts=mounts)


NO_NUMBERS: dict[str, Any] = {
    "bytes_total": None, "bytes_free": None, "bytes_available": None, "inodes_total": None, "inodes_free": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "evidence"),
    [
        (mount(), {}),
        (mount(bytes_free=60 * GIB, bytes_available=50 * GIB), {}),
        (mount(bytes_free=48 * GIB, bytes_available=48 * GIB), {"used_percent": 95.2, "bytes_available": 48 * GIB}),
        (mount(bytes_free=100 * GIB, bytes_available=40 * GIB), {"used_percent": 95.7, "bytes_available": 40 * GIB}),
        (mount(bytes_free=0, bytes_available=0), {"used_percent": 100.0, "bytes_available": 0}),
        (mount(bytes_total=1 << 50, bytes_free=200 * GIB, bytes_available=200 * GIB), {}),  # 99.98 %, and plenty
        (mount(inodes_free=50), {"inodes_used_percent": 95.0, "inodes_free": 50}),
        (mount(inodes_total=0, inodes_free=0), {}),  # btrfs has none to count
        (mount(bytes_total=0, bytes_free=0, bytes_available=0), {}),  # ramfs
        (mount(bytes_free=0, bytes_available=0, read_only=True), {}),  # full by design
        (mount(**NO_NUMBERS, hung_for=9.0), {}),
    ],
)
def test_a_mount_is_full_at_95_percent_of_bytes_or_inodes(facts: MountFacts, evidence: Mapping[str, object]) -> None:
    sightings = host_signs.disk_full(storage(facts))
    assert [dict(s.evidence) for s in sightings] == ([{"type": "", "source": "", **evidence}] if evidence else [])
    assert all(sighting.severity is not F for sighting in sightings)


@pytest.mark.parametrize(
    ("facts", "missing"),
    [
        (mount(expected=True), False),
        (MountFacts(path="/data", expected=True, mounted=False), True),
        (MountFacts(path="/data", expected=True, mounted=False, automount=True), False),
    ],
)
def test_an_expected_mount_that_is_not_there_is_missing(facts: MountFacts, *, missing: bool) -> None:
    assert parts(host_signs.mount_missing(storage(facts))) == (["/data"] if missing else [])


@pytest.mark.parametrize(
    ("facts", "severity", "why"),
    [
        (mount(**NO_NUMBERS, hung_for=7.4, expected=True), F, "does not answer"),
        (mount(**NO_NUMBERS, hung_for=7.4), W, "does not answer"),
        (mount(**NO_NUMBERS, error="Stale file handle", expected=True), F, "Stale file handle"),
    ],
)
def test_a_mount_that_hangs_or_errs_is_worse_where_it_is_expected(
    facts: MountFacts, severity: Severity, why: str
) -> None:
    (sighting,) = host_signs.mount_hung(storage(facts, mount("/fine")))
    assert (sighting.severity, sighting.evidence["why"]) == (severity, why)
    assert host_signs.unseen_mounts(storage(facts, mount("/fine"))) == {Subject("mount", part="/data")}


def test_a_mount_that_became_read_only_counts_and_one_that_always_was_does_not() -> None:
    known = host_signs.writable(frozenset(), storage(mount("/data"), mount("/sets", read_only=True)))
    later = storage(mount("/data", read_only=True), mount("/sets", read_only=True))
    assert parts(host_signs.mount_read_only(later, known)) == ["/data"]
    assert host_signs.writable(known, later) == known


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
    assert bool(host_signs.memory_low(memory)) is low


def test_an_uncorrectable_error_counts_when_it_happens() -> None:
    memory = MemoryFacts(total_bytes=1, controllers=tuple(MemoryController(name=f"mc{n}") for n in range(2)))
    windows = {**grown(("mc0", "uncorrected"), {0: 3, 60: 3}), **grown(("mc1", "uncorrected"), {0: 0, 60: 2})}
    (sighting,) = host_signs.memory_ecc_uncorrectable(memory, windows)
    assert sighting.evidence == {"uncorrected": 2, "controllers": "mc1: 2"}
    assert host_signs.memory_ecc_uncorrectable(memory, grown(("mc0", "uncorrected"), {0: 3, 60: 3})) == []
    assert host_signs.memory_ecc_uncorrectable(memory, {}) == []


# --- Processes -----------------------------------------------------------------------------------------------------


def stuck(comm: str, seconds: float, *, gpu: bool | None, pid: int = 7) -> StuckProcess:
    return StuckProcess(pid=pid, comm=comm, seen_for=seconds, gpu=gpu)


@pytest.mark.parametrize(
    ("processes", "severity"),
    [
        ((), None),
        ((stuck("train", 299.0, gpu=True),), None),
        ((stuck("train", 300.0, gpu=True),), W),
        ((stuck("tar", 9999.0, gpu=False),), None),  # its file system hangs, which is another finding
        ((stuck("python", 9999.0, gpu=None),), None),
        ((stuck("nvidia-smi", 300.0, gpu=None),), F),
        ((stuck("nvidia-modeset/", 300.0, gpu=False),), F),
        ((stuck("nvidia-smi", 10.0, gpu=True), stuck("train", 400.0, gpu=True)), W),
        ((stuck("train", 900.0, gpu=True), stuck("nvidia-smi", 300.0, gpu=True)), F),
    ],
)
def test_a_process_that_holds_a_gpu_and_cannot_be_ended_warns_and_one_of_the_driver_fails(
    processes: tuple[StuckProcess, ...], severity: Severity | None
) -> None:
    sightings = host_signs.process_hung(ProcessesFacts(stuck=processes))
    assert [sighting.severity for sighting in sightings] == ([] if severity is None else [severity])


def test_all_processes_are_one_finding_that_names_the_worst() -> None:
    many = (
        *(stuck("train", 600.0 + n, gpu=True, pid=n) for n in range(5)),
        stuck("nvidia-smi", 400.0, gpu=True, pid=99),
    )
    (sighting,) = host_signs.process_hung(ProcessesFacts(stuck=many))
    assert sighting.key.subject == NODE
    assert (sighting.evidence["processes"], sighting.evidence["pid"]) == (6, 99)


# --- Services ------------------------------------------------------------------------------------------------------

FABRIC_MANAGER = "nvidia-fabricmanager.service"


def service(active: str, sub: str = "", **more: Any) -> ServiceFacts:
    facts: dict[str, Any] = {
        "unit": "nvidia-dcgm.service",
        "load": "loaded",
        "active": active,
        "sub": sub,
        "enabled": True,
    }
    return ServiceFacts(**{**facts, **more})


def down(facts: ServiceFacts, *, nvswitches: bool = False, uptime: float = HOUR, windows: Windows | None = None) -> Any:
    services = ServicesFacts(services=(facts,))
    sightings = host_signs.service_down(services, windows or {}, nvswitches=nvswitches, uptime=uptime)
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
    assert down(idle, nvswitches=True) == [(F, "does not run")]
    assert down(service("failed", unit=FABRIC_MANAGER, result="signal")) == [(W, "failed: signal")]


def test_a_service_that_restarts_again_and_again_is_down_even_while_it_runs() -> None:
    windows = grown(("nvidia-dcgm.service", "restarts"), {0: 4, 300: 6, 500: 7})
    assert down(service("active", "running"), windows=windows) == [(W, "restarted 3 times within 10 minutes")]
    old = grown(("nvidia-dcgm.service", "restarts"), {0: 4, 300: 7, 5000: 7})
    assert down(service("active", "running"), windows=old) == []


def test_while_the_host_boots_no_service_is_down_for_long_enough() -> None:
    services = ServicesFacts(services=(service("inactive", "dead"),))
    rises = [
        host_signs.service_down(services, {}, nvswitches=False, uptime=uptime)[0].rise
        for uptime in (10.0, 299.0, 300.0)
    ]
    assert rises == [math.inf, math.inf, None]


# --- Site checks ---------------------------------------------------------------------------------------------------


def told(name: str, state: PluginState, unknown_runs: int = 0) -> PluginResult:
    return PluginResult(name=name, state=state, at=Stamp(1.0, 2.0), text="so", exit_code=1, unknown_runs=unknown_runs)


def test_a_site_check_speaks_at_its_own_severity() -> None:
    states = (PluginState.OK, PluginState.WARNING, PluginState.FAILURE, PluginState.UNKNOWN)
    sightings = [s for state in states for s in host_signs.plugin(told("nhc", state))]
    assert [(str(s.key), s.severity, s.evidence["text"]) for s in sightings] == [
        ("plugin_nhc@node", W, "so"),
        ("plugin_nhc@node", F, "so"),
    ]


def test_a_site_check_that_tells_nothing_three_times_in_a_row_failed() -> None:
    plugins = PluginFacts(
        results=(told("fine", PluginState.OK), told("new", PluginState.UNKNOWN, 2), told("bad", PluginState.UNKNOWN, 3))
    )
    assert [str(sighting.key) for sighting in host_signs.plugin_failed(plugins)] == ["plugin_failed.bad@node"]
    assert host_signs.unseen_plugins(plugins) == {"plugin_new", "plugin_bad"}


# --- Counters ------------------------------------------------------------------------------------------------------


def test_the_counters_are_those_that_are_known() -> None:
    infiniband = InfinibandFacts(ports=(PortFacts(device="mlx5_0", port=1, link_downed=2),))
    memory = MemoryFacts(total_bytes=1, controllers=(MemoryController(name="mc0", corrected=9, uncorrected=1),))
    services = ServicesFacts(services=(ServiceFacts(unit="a.service", restarts=3), ServiceFacts(unit="b.mount")))
    assert host_signs.counters(infiniband, memory, services) == {
        ("mlx5_0/1", "link_downed"): 2, ("mc0", "uncorrected"): 1, ("a.service", "restarts"): 3,
    }  # fmt: skip
    assert host_signs.counters(None, None, None) == {}
