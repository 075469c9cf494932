"""Settings of GPUs: what all of them have alike is healthy, what one of them has otherwise warns."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwarden.health.model import Health, Severity
from support.hosts import Host, slot

USUAL = {"ecc_mode": 1, "persistence_mode": 1, "power_limit_mw": 700_000}


def host_with(gpus: int, *odd: int, **setting: int | None) -> Host:
    """A host whose GPUs `odd` have another value of one setting."""
    host = Host(gpus)
    for n in range(gpus):
        host.change(n, **{**USUAL, **(setting if n in odd else {})})
    host.run(700, every=10)
    return host


@pytest.mark.parametrize(
    ("setting", "value", "detail"),
    [
        ("ecc_mode", 0, "ecc_mode"),
        ("persistence_mode", 0, "persistence_mode"),
        ("power_limit_mw", 230_000, "power_limit"),
    ],
)
def test_one_gpu_of_eight_that_differs_warns_after_ten_minutes_and_all_that_do_are_healthy(
    setting: str, value: int, detail: str
) -> None:
    host = host_with(8, 3, **{setting: value})
    assert [(str(f.key), f.severity) for f in host.findings] == [
        (f"gpu_misconfigured.{detail}@gpu/{slot(3)}", Severity.WARNING)
    ]
    assert host.findings[0].evidence["value"] == value
    assert host_with(8, *range(8), **{setting: value}).health is Health.HEALTHY
    host.change(3, **{setting: USUAL[setting]})
    host.run(70)
    assert host.health is Health.HEALTHY


@pytest.mark.parametrize(
    ("gpus", "odd", "found"),
    [(8, (1, 2), 2), (8, (1, 2, 3), 0), (4, (1,), 1), (4, (1, 2), 0), (3, (1,), 0), (1, (0,), 0)],
)
def test_a_minority_of_a_quarter_is_odd_and_a_larger_one_is_a_choice(
    gpus: int, odd: tuple[int, ...], found: int
) -> None:
    host = host_with(gpus, *odd, power_limit_mw=300_000)
    assert len(host.findings) == found


def test_limits_that_boards_of_one_model_are_made_with_are_alike() -> None:
    assert host_with(8, 3, power_limit_mw=699_880).health is Health.HEALTHY
    assert host_with(8, 3, power_limit_mw=None).health is Health.HEALTHY


def test_gpus_of_another_model_are_no_siblings() -> None:
    host = Host(8)
    for n in range(8):
        host.gpus[n] = replace(host.gpus[n], name="NVIDIA A100" if n == 3 else "NVIDIA H100")
        host.change(n, **{**USUAL, **({"power_limit_mw": 250_000} if n == 3 else {})})
    host.run(700, every=10)
    assert host.health is Health.HEALTHY


def test_a_change_that_goes_from_gpu_to_gpu_is_none() -> None:
    host = host_with(8)
    for n in range(8):
        host.change(n, persistence_mode=0)
        host.run(60)
    host.run(700)
    assert host.health is Health.HEALTHY
