"""The series `process_*` are those of Prometheus' own client library; the driver's answers are a histogram."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, ProcessCollector

from gpuwarden.publish.metrics.process import PROCESS
from gpuwarden.publish.snapshot import NVML_PASSES
from support.daemons import FakeHost
from support.scrape import Scrape, scrape
from support.snapshots import snapshot

PASSES = "gpuwarden_nvml_pass_seconds"


def reference(pid: int) -> dict[str, float]:
    """Return what the client library says of a process."""
    families = ProcessCollector(pid=lambda: pid, registry=CollectorRegistry()).collect()
    return {sample.name: sample.value for family in families for sample in family.samples}


def number(page: Scrape, name: str, **labels: str) -> float:
    value = page.value(name, **labels)
    assert value is not None
    return value


@pytest.mark.slow
def test_the_daemon_has_the_series_of_the_client_library_with_its_numbers(tmp_path: Path) -> None:
    with FakeHost(tmp_path, gpus=1).daemon() as daemon:
        daemon.wait_status("healthy")
        before = reference(daemon.process.pid)
        daemon.wait_passes(3)
        page = Scrape(daemon.get("/metrics")[1])
        after = reference(daemon.process.pid)
    assert set(before) == {metric.name for metric in PROCESS if metric.name.startswith("process_")}
    cpu = "process_cpu_seconds_total"
    rounding = 0.001  # seconds: two sums of the same hundredths differ in the last digit
    assert before[cpu] - rounding <= number(page, cpu) <= after[cpu] + rounding
    assert number(page, "process_start_time_seconds") == pytest.approx(before["process_start_time_seconds"], abs=2.0)
    assert number(page, "process_max_fds") == before["process_max_fds"]
    for name in ("process_resident_memory_bytes", "process_virtual_memory_bytes", "process_open_fds"):
        assert number(page, name) == pytest.approx(before[name], rel=0.5)
    assert number(page, f"{PASSES}_bucket", le="+Inf") == number(page, f"{PASSES}_count") >= 3


def test_passes_are_counted_by_their_duration() -> None:
    passes = NVML_PASSES.with_value(0.03).with_value(0.04).with_value(60.0)
    page = scrape(replace(snapshot(), nvml_passes=passes))
    below = {le: page.value(f"{PASSES}_bucket", le=le) for le in ("0.025", "0.05", "30.0", "+Inf")}
    assert below == {"0.025": 0.0, "0.05": 2.0, "30.0": 2.0, "+Inf": 3.0}
    assert page.value(f"{PASSES}_sum") == pytest.approx(60.07)


def test_without_a_daemon_and_before_the_first_pass_nothing_is_claimed() -> None:
    page = scrape(snapshot())
    assert not any(page.values(metric.name) for metric in PROCESS)
    assert page.value(f"{PASSES}_count") == 0.0
