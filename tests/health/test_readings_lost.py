"""Vital readings of a GPU that used to answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwarden.health.gpu.readings_lost import VITAL
from gpuwarden.health.model import EventKind
from gpuwarden_collectors.facts import CallError
from gpuwarden_collectors.nvml.readings import VITAL as ROWS
from support.hosts import Host

CALLS = {
    "temperature": "nvmlDeviceGetTemperatureV",
    "power_usage_mw": "nvmlDeviceGetPowerUsage",
    "utilization_gpu": "nvmlDeviceGetUtilizationRates",
}
UNKNOWN = 999


def started(gpus: int = 8) -> Host:
    host = Host(gpus)
    for n in host.gpus:
        host.change(n, power_usage_mw=300_000, memory_total_bytes=80 << 30)
    host.run(60)
    return host


def losing(host: Host, index: int, *names: str, code: int = UNKNOWN) -> None:
    host.change(index, **dict.fromkeys(names))
    errors = tuple(CallError(call=CALLS[name], code=code, text="Unknown Error") for name in names)
    host.gpus[index] = replace(host.gpus[index], errors=errors)


def answering(host: Host, index: int) -> None:
    host.change(index, power_usage_mw=300_000, temperature=55, utilization_gpu=90)
    host.gpus[index] = replace(host.gpus[index], errors=())


def raised(host: Host) -> list[tuple[str, str]]:
    return [(str(e.key), str(e.data["severity"])) for e in host.ledger if e.kind == EventKind.RAISED]


def test_every_vital_call_is_known() -> None:
    rows = [call for row in ROWS for call in (row, row.otherwise) if call is not None]
    assert {call.function: call.into[0] for call in rows} == VITAL


def test_two_readings_that_are_lost_for_two_minutes_fail_the_gpu_and_one_warns() -> None:
    host = started()
    losing(host, 3, "power_usage_mw", "temperature")
    host.run(115)
    assert raised(host) == []
    host.run(15)
    assert raised(host) == [("gpu_readings_lost@gpu/0000:13:00.0", "failure")]
    assert host.findings[0].evidence["readings"] == "temperature, power_usage_mw"
    other_host = started()
    losing(other_host, 3, "power_usage_mw")
    other_host.run(200)
    assert raised(other_host) == [("gpu_readings_lost@gpu/0000:13:00.0", "warning")]


def test_it_ends_when_all_answer_again() -> None:
    host = started()
    losing(host, 3, "power_usage_mw", "temperature")
    host.run(200)
    answering(host, 3)
    host.run(120)
    assert host.codes == []


def test_a_restart_while_they_are_lost_ends_nothing() -> None:
    host = started()
    losing(host, 3, "power_usage_mw", "temperature")
    host.run(200)
    host.restart_daemon()
    host.run(600)
    assert [(finding.key.code, finding.severity) for finding in host.findings] == [("gpu_readings_lost", "failure")]


def test_a_restart_before_they_were_lost_for_long_changes_nothing() -> None:
    host = started()
    losing(host, 3, "power_usage_mw", "temperature")
    host.run(30)
    host.restart_daemon()
    host.run(300)
    assert [(finding.key.code, finding.severity) for finding in host.findings] == [("gpu_readings_lost", "failure")]


@pytest.mark.parametrize("code", [3, 4, 13, 15])  # not supported, no permission, function not found, lost
def test_readings_that_are_not_supported_or_not_permitted_are_not_lost(code: int) -> None:
    host = started()
    losing(host, 3, "power_usage_mw", "temperature", code=code)
    host.run(600)
    assert raised(host) == []


def test_what_never_answered_since_the_boot_is_not_missed() -> None:
    host = Host(8)
    losing(host, 3, "power_usage_mw", "temperature")
    host.run(600)
    assert raised(host) == []
    again = started()
    again.reboot()
    losing(again, 3, "power_usage_mw", "temperature")
    again.run(600)
    assert raised(again) == []


def test_what_no_gpu_of_this_name_answers_is_the_drivers() -> None:
    host = started()
    for n in host.gpus:
        losing(host, n, "power_usage_mw", "temperature")
    host.run(600)
    assert raised(host) == []
    other = started(2)
    other.gpus[1] = replace(other.gpus[1], name="NVIDIA A40")
    losing(other, 0, "power_usage_mw", "temperature")
    other.run(600)
    assert raised(other) == []


def test_a_reading_that_answers_now_and_then_is_not_lost() -> None:
    host = started()
    for _ in range(20):
        losing(host, 3, "power_usage_mw", "temperature")
        host.run(60)
        answering(host, 3)
        host.run(5)
    assert raised(host) == []
