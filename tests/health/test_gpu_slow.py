"""GPUs that are slow while they are busy, the external power brake, and what is slow with good reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from gpuwarden.health.model import Advice, Health, Severity
from gpuwarden.health.view import CheckRule, Rules
from gpuwarden_collectors.base import Observation, PassOutcome
from gpuwarden_collectors.facts import GpuProcess
from gpuwarden_collectors.slurm.jobs_facts import Job, JobProcess, JobsFacts
from support.hosts import Host, slot
from support.quick import first_quick

MINUTE = 60.0
SLOW = {"clock_sm_mhz": 480}


def working(gpus: int = 8, *, name: str = "", **readings: float | None) -> Host:
    """All GPUs at full utilisation, at 1,755 of 1,980 MHz and 500 of 700 W."""
    host = Host(gpus)
    for n in range(gpus):
        host.change(
            n, utilization_gpu=100, clock_sm_mhz=1755, clock_sm_max_mhz=1980, power_usage_mw=500_000,
            power_enforced_limit_mw=700_000, clock_event_reasons=0, memory_used_bytes=70 << 30, memory_total_bytes=80 << 30,
        )  # fmt: skip
        host.change(n, **readings)
        if name:
            host.gpus[n] = replace(host.gpus[n], name=name)
    return host


def slow(host: Host) -> list[str]:
    return [f.key.subject.slot for f in host.findings if f.key.code == "gpu_slow"]


def judged(host: Host, minutes: float = 30) -> list[str]:
    host.run(minutes * MINUTE)
    return slow(host)


# --- slow


@pytest.mark.parametrize(
    ("gpus", "readings"),
    [
        pytest.param(8, SLOW, id="below half of its siblings"),
        pytest.param(1, SLOW, id="alone, below half of its maximum"),
        pytest.param(2, SLOW, id="of two, below half of its maximum"),
        pytest.param(8, {"clock_sm_mhz": 1300, "clock_event_reasons": 0x20}, id="hot, below 80 % of its siblings"),
        pytest.param(
            1, {"clock_sm_mhz": 1100, "clock_event_reasons": 0x20}, id="hot and alone, below 60 % of its maximum"
        ),
        pytest.param(
            8, {**SLOW, "clock_event_reasons": 0x4, "power_usage_mw": 300_000}, id="capped far below its limit"
        ),
        pytest.param(8, {**SLOW, "clock_event_reasons": 0x8}, id="slowed by the hardware, which says not why"),
    ],
)
def test_a_slow_gpu_warns_after_ten_minutes(gpus: int, readings: Mapping[str, float]) -> None:
    host = working(gpus)
    host.change(gpus - 1, **readings)
    assert judged(host, 9.5) == []
    assert judged(host, 1) == [slot(gpus - 1)]
    finding = host.findings[0]
    assert (finding.severity, finding.advice) == (Severity.WARNING, Advice.INSPECT_HARDWARE)
    assert finding.evidence["sm_clock_mhz"] == readings["clock_sm_mhz"]


@pytest.mark.parametrize(
    ("reasons", "why"),
    [
        (0x0, "no reason of the driver's explains it"),
        (0x100, "no reason of the driver's explains it"),
        (0x8, "hardware slowdown, neither for heat nor by the power brake"),
        (0x200, "the limit of the board"),
        (0x400, "the reliability limit of the board"),
        (0x600, "the limit of the board, the reliability limit of the board"),
        (0x1200, "the limit of the board, a reason of the driver's that is not known (0x1000)"),
    ],
)
def test_a_reason_that_the_driver_gives_is_named(reasons: int, why: str) -> None:
    host = working()
    host.change(7, **SLOW, clock_event_reasons=reasons)
    assert judged(host, 11) == [slot(7)]
    assert host.findings[0].evidence["why"] == why


def test_capping_below_seventy_per_cent_of_its_limit_warns_where_its_siblings_reach_theirs() -> None:
    host = working(clock_event_reasons=0x4, power_usage_mw=690_000)
    host.change(2, power_usage_mw=450_000, clock_sm_mhz=1200)
    assert judged(host) == [slot(2)]
    assert host.findings[0].evidence["why"] == "power capping far below its own limit"


def test_heat_by_the_drivers_own_clock_of_it_counts_where_passes_miss_the_bit() -> None:
    host = working()
    host.change(5, clock_sm_mhz=1200, slowdown_sw_thermal_ns=0)
    for _ in range(200):
        counted = (host.gpus[5].readings.slowdown_sw_thermal_ns or 0) + 4_000_000_000
        host.change(5, slowdown_sw_thermal_ns=counted)
        host.run(5)
    assert slow(host) == [slot(5)]


@pytest.mark.slow
def test_it_stays_at_rest_and_over_a_restart_and_ends_with_five_minutes_of_full_speed() -> None:
    host = working()
    host.change(1, **SLOW)
    host.run(11 * MINUTE)
    host.change(1, utilization_gpu=0, clock_event_reasons=1, clock_sm_mhz=345)
    host.run(3 * 3600, every=15)
    host.restart_daemon()
    assert judged(host) == [slot(1)]
    host.change(1, utilization_gpu=100, clock_event_reasons=0, clock_sm_mhz=1740)
    assert judged(host, 4) == [slot(1)]
    assert judged(host, 2) == []


def test_a_restart_in_the_middle_delays_nothing() -> None:
    host = working()
    host.change(1, **SLOW)
    host.run(6 * MINUTE)
    host.restart_daemon()
    assert judged(host, 5) == [slot(1)]


# --- slow with a reason, or not judged


@pytest.mark.slow
@pytest.mark.parametrize(
    "readings",
    [
        pytest.param({"clock_event_reasons": 0x2}, id="clocks that were set"),
        pytest.param({"clock_event_reasons": 0x8 | 0x40}, id="hardware thermal slowdown"),
        pytest.param({"clock_event_reasons": 0x8 | 0x80}, id="the power brake"),
        pytest.param({"clock_sm_mhz": 1000, "clock_event_reasons": 0x8}, id="slowed by the hardware, above half"),
        pytest.param({"clock_event_reasons": 0x4, "power_usage_mw": 640_000}, id="at its own power limit"),
        pytest.param(
            {"clock_event_reasons": 0x24, "power_usage_mw": 295_000, "power_enforced_limit_mw": 300_000},
            id="a lower limit for one job",
        ),
        pytest.param({"clock_event_reasons": 0x4, "power_usage_mw": None}, id="capped, power not known"),
        pytest.param({"clock_event_reasons": None}, id="reasons not known"),
        pytest.param({"clock_sm_mhz": None}, id="clock not known"),
        pytest.param({"utilization_gpu": 0, "clock_event_reasons": 1}, id="idle"),
        pytest.param({"utilization_gpu": 80}, id="not quite busy"),
        pytest.param({"utilization_gpu": None, "mig_mode": 1}, id="divided"),
        pytest.param({"mig_mode": 1}, id="divided, with a utilisation"),
        pytest.param({"performance_state": 8}, id="a lower performance state"),
        pytest.param({"memory_used_bytes": 1 << 20}, id="a utilisation that was left standing"),
        pytest.param({"clock_event_reasons": 1}, id="idle, by the driver"),
        pytest.param({"clock_sm_mhz": 1450, "clock_event_reasons": 0x20}, id="a hot afternoon"),
        pytest.param({"clock_sm_mhz": 1000}, id="a little above half"),
    ],
)
def test_what_is_explained_or_not_known_is_not_slow(readings: Mapping[str, float | None]) -> None:
    host = working()
    host.change(3, **{**SLOW, **readings})
    assert judged(host) == []
    assert host.health is Health.HEALTHY


def test_all_gpus_alike_are_not_slow() -> None:
    assert judged(working(clock_sm_mhz=480)) == []
    assert (
        judged(
            working(clock_sm_mhz=700, clock_event_reasons=0x4, power_usage_mw=395_000, power_enforced_limit_mw=400_000)
        )
        == []
    )


def test_all_gpus_that_the_hardware_slows_down_without_naming_heat_or_brake_are_slow() -> None:
    assert judged(working(clock_sm_mhz=480, clock_event_reasons=0x8), 11) == [slot(n) for n in range(8)]
    assert judged(working(clock_sm_mhz=1000, clock_event_reasons=0x8), 11) == []


def test_a_busy_gpu_among_idle_ones_is_compared_with_itself() -> None:
    host = working(utilization_gpu=0, clock_event_reasons=1, clock_sm_mhz=345, performance_state=0)
    host.change(0, utilization_gpu=100, clock_event_reasons=0, clock_sm_mhz=1700)
    assert judged(host) == []


def seen(jobs: JobsFacts, host: Host) -> Observation[JobsFacts]:
    return Observation(collector="jobs", outcome=PassOutcome.OBSERVED, started=host.now, finished=host.now, facts=jobs)


@pytest.mark.slow
def test_gpus_of_another_name_and_of_another_job_are_no_siblings() -> None:
    host = working(name="NVIDIA H100")
    for n in (0, 1):
        host.gpus[n] = replace(host.gpus[n], name="NVIDIA L4")
        host.change(n, clock_sm_mhz=800, clock_sm_max_mhz=1200)
    assert judged(host) == []
    host = working()
    for n in range(8):
        host.gpus[n] = replace(host.gpus[n], processes=(GpuProcess(pid=100 + n),))
    for n in (0, 1, 2):
        host.change(n, clock_sm_mhz=860)  # a job that its user runs at other clocks, which the driver does not name
    owners = tuple(JobProcess(pid=100 + n, uid=1, job=1 if n < 3 else 2, known_from="cgroup") for n in range(8))
    jobs = JobsFacts(jobs=(Job(id=1, uid=1), Job(id=2, uid=1)), processes=owners)
    for _ in range(180):
        host.uptime += 5
        host.view = host.view.after(seen(jobs, host))
        host.step()
    assert slow(host) == []
    host.view = host.view.after(seen(JobsFacts(), host))
    assert judged(host) == [slot(0), slot(1), slot(2)], "where jobs are not known, all are siblings"


@pytest.mark.parametrize("name", ["NVIDIA GB200", "NVIDIA GH200 480GB", "NVIDIA GB10"])
def test_a_superchip_is_capped_by_what_it_shares_with_its_cpu(name: str) -> None:
    host = working(4, name=name, clock_event_reasons=0x4, power_usage_mw=690_000)
    host.change(2, power_usage_mw=400_000, clock_sm_mhz=700)
    assert judged(host) == []


def test_a_spiky_job_below_its_limit_is_not_slow() -> None:
    host = working(clock_event_reasons=0x4, power_usage_mw=690_000, clock_sm_mhz=1400)
    host.change(2, power_usage_mw=450_000, clock_sm_mhz=1900)
    assert judged(host) == []


def test_clocks_that_are_low_when_work_begins_are_not_slow() -> None:
    host = working()
    for _ in range(30):
        host.change(4, utilization_gpu=100, clock_sm_mhz=345)
        host.run(5)
        host.change(4, clock_sm_mhz=1755)
        host.run(20)
        host.change(4, utilization_gpu=0)
        host.run(40)
    assert slow(host) == []


# --- the power brake


def braked(host: Host, minutes: float, *gpus: int, every: float = 5.0, **readings: float | None) -> None:
    """Run these GPUs at a quarter of their clock; `every`: seconds between two passes."""
    values: dict[str, float | None] = {
        "clock_event_reasons": 0x8C, "clock_sm_mhz": 495, "clock_sm_max_mhz": 1980, **readings,
    }  # fmt: skip
    for n in gpus:
        host.change(n, **values)
    for _ in range(int(minutes * 60 / every)):
        for n in gpus:
            counted = host.gpus[n].readings.slowdown_hw_power_brake_ns
            host.change(n, slowdown_hw_power_brake_ns=None if counted is None else counted + round(every * 1e9))
        host.uptime += every
        host.step()


def power_brake(host: Host) -> list[tuple[str, Severity]]:
    return [(f.key.subject.slot, f.severity) for f in host.findings if f.key.code == "power_brake"]


def test_a_brake_that_holds_a_working_gpu_at_a_quarter_of_its_clock_for_ten_minutes_fails_it() -> None:
    host = working(4)
    braked(host, 8, 2, 3)
    assert power_brake(host) == [(slot(2), Severity.WARNING), (slot(3), Severity.WARNING)]
    braked(host, 2, 2, 3)
    assert power_brake(host) == [(slot(2), Severity.FAILURE), (slot(3), Severity.FAILURE)]


def test_a_brake_is_found_with_the_longest_interval_of_passes_that_there_may_be() -> None:
    host = working(4)
    braked(host, 16, 1, every=30.02)
    assert power_brake(host) == [(slot(1), Severity.FAILURE)]


def test_a_brake_of_a_driver_without_the_counter_fails_it_too() -> None:
    host = working(4, slowdown_hw_power_brake_ns=None)
    braked(host, 16, 1)
    assert power_brake(host) == [(slot(1), Severity.FAILURE)]


@pytest.mark.parametrize(
    "readings",
    [
        pytest.param({"clock_sm_mhz": 1200}, id="at 60 % of its clock"),
        pytest.param({"utilization_gpu": 0, "clock_sm_mhz": 345}, id="idle"),
        pytest.param({"clock_sm_max_mhz": None}, id="maximum not known"),
        pytest.param({"clock_sm_mhz": None}, id="clock not known"),
    ],
)
def test_a_brake_without_a_low_clock_at_work_warns(readings: Mapping[str, float | None]) -> None:
    host = working(4)
    braked(host, 20, 1, **readings)  # type: ignore[arg-type]
    assert power_brake(host) == [(slot(1), Severity.WARNING)]


@pytest.mark.parametrize("then", first_quick(1, [Host.restart_daemon, Host.checkpointed]))
def test_a_failing_brake_stays_a_failure_over_a_restart_and_at_rest(then: Callable[[Host], None]) -> None:
    host = working(4)
    braked(host, 15, 2)
    then(host)
    for _ in range(4):
        braked(host, 4, 2)
        assert power_brake(host) == [(slot(2), Severity.FAILURE)]
    braked(host, 20, 2, utilization_gpu=0)
    assert power_brake(host) == [(slot(2), Severity.FAILURE)]
    host.change(2, clock_event_reasons=0, utilization_gpu=100, clock_sm_mhz=1755)
    host.run(20 * MINUTE)
    assert power_brake(host) == []


def test_the_sites_severity_has_the_brake_as_a_warning() -> None:
    host = working(4)
    host.rules = Rules(checks={"power_brake": CheckRule(severity=Severity.WARNING)})
    braked(host, 15, 2)
    assert power_brake(host) == [(slot(2), Severity.WARNING)]
