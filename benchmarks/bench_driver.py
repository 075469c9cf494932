"""The cost of reading the GPUs in the driver: CPU of the calls, for each pass and GPU, over ten minutes at the default interval.

With the fake library at the prices of an H100, on a simulated clock: what the calls should use by those prices, what they
used (a run with prices less one without), and Python's share. With `--library` (a path, or libnvidia-ml.so.1) the driver of
this machine is read on the real clock, and the CPU is that of the whole pass, Python's share included.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from common import spread, table
from gpuwarden_collectors.nvml.due import period
from gpuwarden_collectors.nvml.options import NvmlOptions
from gpuwarden_collectors.nvml.reader import NvmlReader
from gpuwarden_collectors.nvml.readings import CALLS, Cadence
from support.fake_nvml_library import CONTROL_VARIABLE, FakeNvml

WANTED = 3.0  # ms a pass and GPU
INTERVAL = NvmlOptions().interval
PASSES = int(600 / INTERVAL)
SETTLE = 20
"""Passes behind the first: each GPU had its turn for what is read once a day."""


def rare() -> float:
    """Return the milliseconds per pass and GPU of the calls that are due too rarely for a run of ten minutes."""
    rows = [row for row in CALLS if row.cadence >= Cadence.HOUR]
    return sum(row.price * INTERVAL / period(row.cadence, INTERVAL) for row in rows)


def passes(reader: NvmlReader, wait: Callable[[], None]) -> list[float]:
    """Return the CPU of each pass, in milliseconds. The first ones read everything and do not count."""
    took = []
    for _ in range(SETTLE + PASSES):
        begun = time.thread_time_ns()
        reader.read()
        took.append((time.thread_time_ns() - begun) / 1e6)
        wait()
    return took[SETTLE:]


def on_the_fake(fake: FakeNvml, gpus: int, *, prices: bool) -> tuple[list[float], float]:
    """Return the CPU of each pass and GPU, and their cost by the prices."""
    fake.write(gpus=gpus, prices=prices)
    now = [1000.0]

    def wait() -> None:
        now[0] += INTERVAL

    reader = NvmlReader(NvmlOptions(library=str(fake.library)), clock=lambda: now[0])
    reader.connect()
    try:
        took = passes(reader, wait)
        before = fake.driver_ms()
        passes(reader, wait)
        return [each / gpus for each in took], (fake.driver_ms() - before) / (SETTLE + PASSES) / gpus
    finally:
        reader.close()


def fake_row(fake: FakeNvml, gpus: int) -> list[str]:
    alone, _ = on_the_fake(fake, gpus, prices=False)
    burnt, by_price = on_the_fake(fake, gpus, prices=True)
    driver = statistics.mean(burnt) - statistics.mean(alone)
    return [
        str(gpus), f"{by_price + rare():.2f}", f"{driver + rare():.2f}", f"<= {WANTED:g}", f"{max(burnt):.1f}",
        f"{statistics.mean(alone):.2f}",
    ]  # fmt: skip


def real_row(library: str) -> list[str]:
    reader = NvmlReader(NvmlOptions(library=library))
    reader.connect()
    try:
        gpus = max(len(reader.read().gpus), 1)
        took = [each / gpus for each in passes(reader, lambda: time.sleep(INTERVAL))]
    finally:
        reader.close()
    return [str(gpus), spread(took), f"{statistics.mean(took) + rare():.2f}", f"<= {WANTED:g}", f"{max(took):.1f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", help="the driver's library; takes ten minutes")
    library = parser.parse_args().library
    title = (
        f"CPU of a pass for each GPU, ms; {PASSES} passes, one each {INTERVAL:g} s, hourly and daily readings included"
    )
    if library:
        whole = ("GPUs", "whole pass", "mean", "wanted", "most in a pass")
        return table(f"{title}; the driver of this machine", whole, [real_row(library)])
    with tempfile.TemporaryDirectory(prefix="gw-") as folder:
        fake = FakeNvml.build(Path(folder))
        os.environ[CONTROL_VARIABLE] = str(fake.control)
        head = ("GPUs", "driver, by the prices", "driver, burnt", "wanted", "most in a pass", "Python beside")
        table(f"{title}; a fake library at H100 prices", head, [fake_row(fake, gpus) for gpus in (1, 8)])
    return None


if __name__ == "__main__":
    main()
