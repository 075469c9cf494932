"""Passes over the GPUs that take longer than they did."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle

import pytest

from gpuwarden.health.gpu.reading_time import LEARNED_FROM, LONGER
from gpuwarden.health.model import EventKind, Health
from gpuwarden_collectors.base import PassOutcome
from gpuwarden_collectors.facts import GpuAnswer
from support.hosts import Host, slot


def learned(usual: float = 0.1) -> Host:
    host = Host(8)
    host.read_seconds = usual
    host.run(5.0 * LEARNED_FROM)
    return host


def slow(host: Host, seconds: float, index: int = 3) -> None:
    """Let the readings of one GPU take that many seconds from now on."""
    host.gpus[index] = replace(host.gpus[index], read_seconds=seconds)
    host.read_seconds = round(0.1 + seconds, 1)


def took(host: Host, *seconds: float, passes: int) -> None:
    """Passes that take these times, over and over."""
    times = cycle(seconds)
    for _ in range(passes):
        host.read_seconds = next(times)
        host.later(5)


def test_a_driver_that_became_slow_is_a_finding_after_ten_minutes_and_names_the_gpu() -> None:
    host = learned()
    slow(host, 1.6)
    host.run(595)
    assert host.codes == []
    host.run(10)
    (finding,) = host.findings
    assert (finding.key.code, finding.severity.value, host.health) == ("driver_slow", "warning", Health.WARNING)
    assert finding.evidence == {
        "read_seconds": 1.7, "usual_read_seconds": 0.1, "slowest_gpu": slot(3), "slowest_gpu_seconds": 1.6,
    }  # fmt: skip


@pytest.mark.slow
def test_it_ends_after_ten_minutes_of_ordinary_passes_however_long_it_was_slow() -> None:
    host = learned()
    slow(host, 3.0)
    host.run(6 * 3600, every=15)
    assert host.codes == ["driver_slow"], "what it does now has become no custom"
    slow(host, 0.1)
    host.run(590)
    assert host.codes == ["driver_slow"]
    host.run(20)
    assert (host.codes, host.health) == ([], Health.HEALTHY)


@pytest.mark.slow
@pytest.mark.parametrize("after", [300.0, 900.0], ids=["while it rises", "as a finding"])
def test_a_restart_of_the_daemon_keeps_what_it_is_measured_by(after: float) -> None:
    host = learned()
    slow(host, 2.0)
    host.run(after)
    host.restart_daemon()
    host.run(3600)
    assert host.codes == ["driver_slow"]
    slow(host, 0.0)
    host.run(620)
    assert host.codes == []


def test_all_gpus_a_little_slower_are_a_slow_driver_too() -> None:
    host = learned()
    for index in host.gpus:
        host.gpus[index] = replace(host.gpus[index], read_seconds=0.2)
    host.read_seconds = 1.6
    host.run(610)
    assert host.codes == ["driver_slow"]


# --- healthy nodes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("times", "passes"),
    [
        ((0.1 + LONGER - 0.1,), 1000),
        ((9.0, *[0.1] * 11), 1000),
        ((*[5.0] * 100, *[0.1] * 5), 1000),
        ((0.1, 0.3, 0.9, 0.2), 1000),
    ],
    ids=["a second more", "a slow pass each minute", "eight minutes at a time", "now this, now that"],
)
def test_ordinary_slow_passes_accuse_nobody(times: tuple[float, ...], passes: int) -> None:
    host = learned()
    took(host, *times, passes=passes)
    assert [event.key for event in host.ledger if event.kind is EventKind.RAISED] == []


def test_a_driver_that_is_being_initialised_is_not_the_custom() -> None:
    host = Host(8)
    took(host, 30.0, 6.0, 4.0, 3.0, 2.0, passes=5)
    took(host, 0.1, passes=40)
    slow(host, 1.5)
    host.run(610)
    assert host.codes == ["driver_slow"]


@pytest.mark.slow
def test_a_driver_that_was_always_slow_is_left_alone() -> None:
    host = learned(4.0)
    took(host, 4.0, 3.5, 5.2, passes=1000)
    assert host.codes == []


def test_a_gpu_that_does_not_answer_makes_no_slow_driver() -> None:
    host = learned()
    host.answer(3, GpuAnswer.TIMEOUT)
    slow(host, 6.0)
    host.run(1200)
    assert host.codes == ["gpu_unresponsive"]


def test_facts_without_times_and_passes_without_facts_say_nothing() -> None:
    host = learned()
    slow(host, 2.0)
    host.run(610)
    host.read_seconds = None
    host.run(3600, every=15)
    assert host.codes == ["driver_slow"], "a finding never ends by silence"
    other = learned()
    for _ in range(200):
        other.uptime += 5
        other.step(nvml=other.nvml(PassOutcome.FAILED))
    assert "driver_slow" not in other.codes


def test_a_boot_begins_anew() -> None:
    host = learned()
    host.reboot()
    host.read_seconds = 2.5
    host.run(3600, every=15)
    assert host.codes == []
