"""An idle GPU that is hot beside idle siblings that are not: in shadow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwarden.health.model import Health
from gpuwarden_collectors.facts import GpuProcess
from support.hosts import Host, slot
from support.quick import first_quick


def at_rest(count: int = 8) -> Host:
    """Idle GPUs as different as those of one baseboard are."""
    host = Host(count)
    for index in host.gpus:
        host.change(index, utilization_gpu=0, temperature=33 + 2 * (index % 5), power_usage_mw=70_000 + 1500 * index)
    host.run(60)
    return host


def shadows(host: Host) -> list[str]:
    return [
        finding.key.subject.slot for finding in host.findings if finding.key.code == "gpu_idle_hot" and finding.shadow
    ]


def test_a_hot_idle_gpu_is_a_finding_in_shadow_after_half_an_hour() -> None:
    host = at_rest()
    host.change(2, temperature=64, power_usage_mw=95_000)
    host.run(1795)
    assert shadows(host) == []
    host.run(20)
    assert shadows(host) == [slot(2)]
    assert host.health is Health.HEALTHY, "nothing follows from it"
    host.change(2, temperature=38, power_usage_mw=75_000)
    host.run(700)
    assert shadows(host) == []


@pytest.mark.parametrize(
    ("temperature", "power"),
    first_quick(1, [(64, 78_000), (55, 95_000), (37, 75_000)]),
    ids=["no more power", "less heat", "neither"],
)
def test_heat_alone_or_power_alone_is_no_sign(temperature: int, power: int) -> None:
    host = at_rest()
    host.change(2, temperature=temperature, power_usage_mw=power)
    host.run(3600, every=15)
    assert shadows(host) == []


@pytest.mark.parametrize(
    ("kelvin", "milliwatts", "codes"),
    [(25, 15_000, [slot(2)]), (24, 15_000, []), (25, 14_999, [])],
    ids=["both reached", "less heat", "less power"],
)
def test_beside_three_siblings_25_kelvin_and_15_watts_above_their_median_are_enough(
    kelvin: int, milliwatts: int, codes: list[str]
) -> None:
    host = at_rest(4)
    host.change(2, temperature=35 + kelvin, power_usage_mw=71_500 + milliwatts)
    host.run(1815)
    assert shadows(host) == codes


def test_one_that_cools_down_after_its_job_is_none() -> None:
    host = at_rest()
    for minute in range(40):
        host.change(2, temperature=max(38, 80 - 3 * minute), power_usage_mw=max(76_000, 140_000 - 6000 * minute))
        host.run(60)
    assert shadows(host) == []


@pytest.mark.parametrize("why", ["a process", "busy", "mig", "three siblings with jobs", "another model", "unknown"])
def test_where_it_may_have_a_reason_or_nobody_to_compare_with_it_is_left_alone(why: str) -> None:
    host = at_rest(4)
    host.change(2, temperature=70, power_usage_mw=120_000)
    if why == "a process":
        host.gpus[2] = replace(host.gpus[2], processes=(GpuProcess(pid=1),))
    elif why == "busy":
        host.change(2, utilization_gpu=3)
    elif why == "mig":
        host.change(2, mig_mode=1)
    elif why == "three siblings with jobs":
        for index in (0, 1, 3):
            host.gpus[index] = replace(host.gpus[index], processes=(GpuProcess(pid=1),))
    elif why == "another model":
        host.gpus[2] = replace(host.gpus[2], name="NVIDIA L40S")
    else:
        host.change(0, power_usage_mw=None)
    host.run(3600, every=15)
    assert shadows(host) == []
