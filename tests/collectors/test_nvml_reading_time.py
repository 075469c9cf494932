"""How long the driver keeps the reader: real workers over the fake library, and a thread that gets no processor."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpuwarden_collectors.base import Observation
from gpuwarden_collectors.facts import NvmlFacts
from gpuwarden_collectors.nvml.options import NvmlOptions
from gpuwarden_collectors.worker.worker import Worker
from support.fake_nvml_library import FakeNvml
from support.quick import first_quick
from support.workers import ENVIRONMENT, PATIENT, SOON, Make, workers

SLOW = 3
SLOT = "0000:42:00.0"


@pytest.fixture
async def worker() -> AsyncIterator[Make]:
    async with workers() as make:
        yield make


@pytest.fixture
def fake(tmp_path: Path) -> FakeNvml:
    return FakeNvml.build(tmp_path)


def reader(make: Make, fake: FakeNvml) -> Worker[Any]:
    return make(
        NvmlOptions(library=str(fake.library)), PATIENT, reader="gpuwarden_collectors.nvml.reader:NvmlReader",
        facts_type=NvmlFacts, environment={**ENVIRONMENT, **fake.environment},
    )  # fmt: skip


def times(seen: Observation[NvmlFacts]) -> tuple[float, dict[str, float]]:
    """Return the reading time of the pass, and of each GPU by slot."""
    assert seen.facts is not None, seen.error
    assert seen.facts.read_seconds is not None
    return seen.facts.read_seconds, {gpu.slot: gpu.read_seconds or 0.0 for gpu in seen.facts.gpus}


@pytest.mark.parametrize(
    "call", first_quick(1, ["nvmlDeviceGetTemperatureV", "nvmlDeviceGetFieldValues", "nvmlDeviceGetHandleByIndex_v2"])
)
async def test_the_gpu_whose_calls_became_slow_is_the_one_that_took_long(
    worker: Make, fake: FakeNvml, call: str
) -> None:
    nvml = reader(worker, fake)
    before, of_gpus = times(await nvml.observe())
    assert set(of_gpus) >= {SLOT}
    fake.slow(SLOW, call, 1_600_000)
    total, of_gpus = times(await nvml.observe())
    assert of_gpus[SLOT] >= 1.6
    assert total >= of_gpus[SLOT]
    assert max(of_gpus, key=lambda slot: of_gpus[slot]) == SLOT
    assert sum(taken for slot, taken in of_gpus.items() if slot != SLOT) < 1.6 > before


async def test_what_is_slow_about_no_gpu_is_time_of_the_pass_alone(worker: Make, fake: FakeNvml) -> None:
    nvml = reader(worker, fake)
    await nvml.observe()
    fake.slow("*", "nvmlDeviceGetCount_v2", 1_600_000)
    total, of_gpus = times(await nvml.observe())
    assert total >= 1.6
    assert sum(of_gpus.values()) < 1.6


WORKS = """
import os, time
from gpuwarden_collectors.nvml.reading_time import ReadingTime
os.sched_setaffinity(0, {%d})
taken, begin = ReadingTime(), time.monotonic()
while time.thread_time() < 0.8: pass
taken.add(0)
print(taken.of(0), time.monotonic() - begin)
"""
SLEEPS_AFTER_SHORT_PARTS = """
import os, time
from gpuwarden_collectors.nvml.reading_time import ReadingTime
os.sched_setaffinity(0, {%d})
taken = ReadingTime()
for n in range(400):
    end = time.thread_time() + 0.002
    while time.thread_time() < end: pass
    taken.add(0)
time.sleep(1.0)
taken.add(1)
print(taken.of(1), taken.total())
"""


def beside_others(script: str) -> list[float]:
    """Return what the script prints that has a fifth of a processor."""
    cpu = min(os.sched_getaffinity(0))
    spins = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        for process in spins:
            os.sched_setaffinity(process.pid, {cpu})
        command = [sys.executable, "-c", script % cpu]
        output = subprocess.run(
            command, env=ENVIRONMENT, capture_output=True, text=True, timeout=SOON, check=True
        ).stdout
    finally:
        for process in spins:
            process.kill()
            process.wait()
    return [float(word) for word in output.split()]


@pytest.mark.slow
def test_time_in_which_the_reader_waits_for_a_processor_does_not_count() -> None:
    kept, passed = beside_others(WORKS)
    assert 0.7 <= kept < passed / 2, "it had a fifth of the processor"


@pytest.mark.slow
def test_what_short_parts_waited_for_a_processor_is_no_time_less_of_a_long_one() -> None:
    slept, total = beside_others(SLEEPS_AFTER_SHORT_PARTS)
    assert slept >= 1.0, "a driver that keeps the reader for a second does so on a busy host, too"
    assert total >= slept
