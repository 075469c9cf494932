"""Settings of GPUs: what all of them have alike is healthy, what one of them has otherwise warns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gpuwarden.health.inventory import accept, accepted
from gpuwarden.health.model import Health, Severity
from gpuwarden.health.view import ExpectedSettings, Rules, Sight
from gpuwarden_collectors.facts import GpuProcess
from support.hosts import Host, slot
from support.quick import first_quick

USUAL = {
    "ecc_mode": 1,
    "ecc_mode_pending": 1,
    "persistence_mode": 1,
    "power_limit_mw": 700_000,
    "gsp_mode": 1,
    "compute_mode": 0,
}
HOUR, DAY = 3600.0, 86_400.0
AT_WORK = (GpuProcess(pid=4711),)


def host_with(gpus: int, *odd: int, seconds: float = 700, **setting: Any) -> Host:
    """A host whose GPUs `odd` have another value of one setting."""
    host = Host(gpus)
    for n in range(gpus):
        host.change(n, **USUAL)
        if n in odd:
            set_(host, n, **setting)
    host.run(seconds, every=10 if seconds < HOUR else 300)
    return host


def set_(host: Host, n: int, **setting: Any) -> None:
    texts = {name: value for name, value in setting.items() if name in ("vbios", "board_part")}
    host.gpus[n] = replace(host.gpus[n], **texts)
    host.change(n, **{name: value for name, value in setting.items() if name not in texts})


def found(host: Host) -> list[tuple[str, Severity]]:
    return [(str(f.key), f.severity) for f in host.findings]


HARD = [
    ("ecc_mode", 0, "ecc_mode"),
    ("ecc_mode_pending", 0, "ecc_mode_pending"),
    ("vbios", "96.00.74.00.01", "vbios"),
    ("pcie_generation_max", 4, "pcie_generation"),
    ("pcie_width_max", 8, "pcie_width"),
    ("gsp_mode", 0, "gsp_mode"),
]
BY_JOBS = [
    ("persistence_mode", 0, "persistence_mode"),
    ("mig_mode", 1, "mig_mode"),
    ("compute_mode", 3, "compute_mode"),
    ("power_limit_mw", 230_000, "power_limit"),
    ("power_enforced_limit_mw", 500_000, "power_limit_enforced"),
    ("clock_sm_application_mhz", 1200, "clock_sm"),
    ("clock_memory_application_mhz", 1593, "clock_memory"),
]
COMMON = {"clock_sm_application_mhz": 1980, "clock_memory_application_mhz": 2619}


def common(host: Host) -> Host:
    for n in host.gpus:
        for name, value in COMMON.items():
            if getattr(host.gpus[n].readings, name) is None:
                host.change(n, **{name: value})
    return host


@pytest.mark.parametrize(("setting", "value", "detail"), first_quick(3, HARD))
def test_one_gpu_of_eight_that_differs_warns_after_ten_minutes_and_all_that_do_are_healthy(
    setting: str, value: int | str, detail: str
) -> None:
    host = host_with(8)
    assert host.health is Health.HEALTHY
    before = host.gpus[3]
    set_(host, 3, **{setting: value})
    host.run(580, every=10)
    assert host.health is Health.HEALTHY
    host.run(60, every=10)
    assert found(host) == [(f"gpu_misconfigured@gpu/{slot(3)}", Severity.WARNING)]
    assert host.findings[0].evidence[detail] == value
    assert f"{detail}_of_siblings" in host.findings[0].evidence
    alike: dict[str, Any] = {setting: value}
    assert host_with(8, *range(8), **alike).health is Health.HEALTHY
    host.gpus[3] = before
    host.run(70)
    assert host.health is Health.HEALTHY


@pytest.mark.parametrize(("setting", "value", "detail"), first_quick(2, BY_JOBS))
def test_what_jobs_set_warns_after_a_day_without_a_job(setting: str, value: int, detail: str) -> None:
    host = common(host_with(8, 3, seconds=60, **{setting: value}))
    host.run(23 * HOUR, every=300)
    assert host.health is Health.HEALTHY
    host.restart_daemon()
    host.run(2 * HOUR, every=300)
    assert found(host) == [(f"gpu_misconfigured.set_by_jobs@gpu/{slot(3)}", Severity.WARNING)]
    assert host.findings[0].evidence[detail] == value
    host.gpus[3] = replace(
        host.gpus[3], processes=AT_WORK
    )  # a job proves nothing of a setting that was there before it
    host.run(1 * HOUR, every=300)
    assert len(host.findings) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("setting", "value", "detail"), BY_JOBS)
def test_what_a_job_sets_for_itself_is_healthy(setting: str, value: int, detail: str) -> None:
    host = common(host_with(8, seconds=60))
    for _ in range(4):
        host.gpus[3] = replace(host.gpus[3], processes=AT_WORK)
        before = host.gpus[3].readings
        host.change(3, **{setting: value})
        host.run(3 * DAY, every=900)
        host.gpus[3] = replace(host.gpus[3], processes=())
        host.run(20 * HOUR, every=300)  # the epilog was late
        host.gpus[3] = replace(host.gpus[3], readings=before)
        host.run(20 * HOUR, every=300)
        assert host.health is Health.HEALTHY


def test_all_that_one_gpu_has_otherwise_is_one_finding() -> None:
    host = host_with(8, 3, ecc_mode=0, ecc_mode_pending=0, vbios="96.00.74.00.01")
    assert [str(f.key) for f in host.findings] == [f"gpu_misconfigured@gpu/{slot(3)}"]
    assert {"ecc_mode": 0, "ecc_mode_pending": 0, "vbios": "96.00.74.00.01"}.items() <= host.findings[
        0
    ].evidence.items()


@pytest.mark.parametrize(
    ("gpus", "odd", "count"),
    [(8, (1, 2), 2), (8, (1, 2, 3), 0), (4, (1,), 1), (4, (1, 2), 0), (3, (1,), 0), (2, (1,), 0), (1, (0,), 0)],
)
def test_a_minority_of_a_quarter_is_odd_and_a_larger_one_is_a_choice(
    gpus: int, odd: tuple[int, ...], count: int
) -> None:
    assert len(host_with(gpus, *odd, vbios="96.00.74.00.01").findings) == count


@pytest.mark.slow
def test_limits_that_boards_of_one_model_are_made_with_are_alike() -> None:
    assert host_with(8, 3, seconds=2 * DAY, power_limit_mw=699_880).health is Health.HEALTHY
    assert host_with(8, 3, seconds=2 * DAY, power_limit_mw=None).health is Health.HEALTHY
    assert host_with(8, 3, vbios="").health is Health.HEALTHY


@pytest.mark.slow
@pytest.mark.parametrize("properties", [{"name": "NVIDIA A100"}, {"board_part": "692-2G520-0205-000"}])
def test_gpus_of_another_model_or_part_are_no_siblings(properties: dict[str, Any]) -> None:
    for others in ((3,), (0, 1), (0, 1, 2, 3)):
        host = Host(8)
        for n in others:
            host.gpus[n] = replace(host.gpus[n], vbios="92.00.45.00.03", **properties)
            host.change(n, ecc_mode=0, power_limit_mw=250_000, pcie_generation_max=4, pcie_generation=4)
        host.run(2 * DAY, every=300)
        assert host.health is Health.HEALTHY


def test_a_change_that_goes_from_gpu_to_gpu_is_none() -> None:
    host = host_with(8)
    for n in range(8):
        host.change(n, ecc_mode_pending=0)
        host.run(60)
    host.run(700)
    assert host.health is Health.HEALTHY


# --- what the site says


@pytest.mark.parametrize(
    ("pinned", "readings", "detail"),
    first_quick(
        2,
        [
            ({"persistence": "on"}, {"persistence_mode": 0}, "persistence_mode"),
            ({"mig": "off"}, {"mig_mode": 1}, "mig_mode"),
            ({"power_limit_watts": 700}, {"power_limit_mw": 500_000}, "power_limit"),
            ({"power_limit_watts": 700}, {"power_enforced_limit_mw": 500_000}, "power_limit_enforced"),
            ({"application_clock_sm_mhz": 1980}, {"clock_sm_application_mhz": 1200}, "clock_sm"),
            ({"application_clock_memory_mhz": 2619}, {"clock_memory_application_mhz": 1593}, "clock_memory"),
        ],
    ),
)
def test_a_setting_that_the_site_pinned_warns_after_ten_minutes_whatever_the_others_have(
    pinned: dict[str, Any], readings: dict[str, int], detail: str
) -> None:
    for gpus in (1, 8):
        host = Host(gpus, rules=Rules(expected=ExpectedSettings(**pinned)))
        common(host).run(1200, every=10)
        assert host.health is Health.HEALTHY
        for n in host.gpus:
            host.change(n, **readings)
            host.gpus[n] = replace(host.gpus[n], processes=AT_WORK)
        host.run(700, every=10)
        assert [key for key, _ in found(host)] == [f"gpu_misconfigured@gpu/{slot(n)}" for n in range(gpus)]
        assert all(f"{detail}_expected" in f.evidence for f in host.findings)


def test_a_reading_that_a_gpu_does_not_give_is_not_held_against_a_pin() -> None:
    host = Host(4, rules=Rules(expected=ExpectedSettings(application_clock_sm_mhz=1980, mig="off")))
    host.change(2, mig_mode=None)
    host.run(1200, every=10)
    assert host.health is Health.HEALTHY


# --- what an operator accepts


@pytest.mark.slow
@pytest.mark.parametrize("then", [lambda host: None, Host.restart_daemon, Host.checkpointed, Host.reboot])
def test_what_differs_on_purpose_is_accepted_for_good(then: Callable[[Host], None]) -> None:
    host = host_with(8, 3, vbios="96.00.74.00.01 (beta)")
    assert len(host.findings) == 1
    events = accept(host.state, Sight.of(host.view, host.rules, host.now))
    assert accepted(events)["other_settings"] == [slot(3)]
    host.accept()
    then(host)
    host.run(2 * HOUR, every=10)
    assert host.health is Health.HEALTHY
    set_(host, 3, vbios="96.00.99.00.02")
    host.run(700, every=10)
    assert len(host.findings) == 1
    host.gpus[3] = replace(host.gpus[3], uuid="GPU-another", vbios="96.00.74.00.01 (beta)")
    host.run(700, every=10)
    assert len(host.findings) == 1, "another board was not accepted"


@pytest.mark.parametrize(("setting", "value", "usual"), [("compute_mode", 2, 0), ("confidential_ready", 0, 1)])
@pytest.mark.parametrize("odd", [(3,), (0, 1, 2), (0, 1, 2, 3)])
def test_gpus_on_which_no_job_may_start_warn_after_ten_minutes_however_many_they_are(
    odd: tuple[int, ...], setting: str, value: int, usual: int
) -> None:
    host = host_with(4, seconds=0)
    for n in host.gpus:
        host.change(n, **{setting: value if n in odd else usual})
    host.run(590)
    assert host.health is Health.HEALTHY
    host.run(20)
    assert found(host) == [(f"gpu_misconfigured@gpu/{slot(n)}", Severity.WARNING) for n in odd]
    assert all(finding.evidence == {setting: value} for finding in host.findings)
    for n in odd:
        host.change(n, **{setting: usual})
    host.run(70)
    assert host.health is Health.HEALTHY


def test_a_compute_mode_that_an_operator_accepts_is_healthy_also_where_all_have_it() -> None:
    host = host_with(4, *range(4), compute_mode=2)
    assert len(host.findings) == 4
    host.accept()
    host.run(120)
    assert host.health is Health.HEALTHY
