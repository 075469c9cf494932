"""The cost of the worker that reads DCGM: memory, and CPU of a pass.

With no arguments: the double of the bindings for 1, 8 and 16 GPUs. It costs what the real library does not (each call
reads and writes its engine, a file), and lacks the real library's costs (parsing of messages, threads). With `--bindings
FOLDER --address ADDRESS`, those bindings and the engine at that address, pass by pass at an interval of 15 s and of 1 s;
LD_LIBRARY_PATH leads to a libdcgm that is not in the system's folders. That takes five minutes.

All figures are of our process, not of nv-hostengine. An idle Python interpreter is measured beside it, since most of
the memory is its share.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from bench_footprint import memory
from common import cpu_ns, spread, table
from gpuwarden_collectors.base import PassOutcome
from gpuwarden_collectors.dcgm.facts import DcgmFacts
from gpuwarden_collectors.dcgm.options import DcgmOptions
from gpuwarden_collectors.worker.life import WorkerLimits
from gpuwarden_collectors.worker.worker import Worker
from support.dcgm import ADDRESS, BINDINGS, FakeDcgm

GPUS = (1, 8, 16)
PASSES, ROUNDS = 20, 12
MEMORY_LIMIT, CPU_LIMIT = 40.0, 0.5  # MB of PSS, per cent of a core
INTERVAL = DcgmOptions().interval
PACES = {INTERVAL: 15.0, 1.0: 5.0}  # interval of a pass and length of a window, in seconds
SETTLE = 2


def worker_of(options: DcgmOptions, environment: Mapping[str, str]) -> Worker[DcgmFacts]:
    return Worker(
        "dcgm",
        "gpuwarden_collectors.dcgm.reader:DcgmReader",
        DcgmFacts,
        limits=WorkerLimits(deadline=60.0),
        on_event=lambda _: None,
        options=options,
        environment={"PYTHONPATH": ":".join(sys.path), **environment},
    )


async def first(worker: Worker[DcgmFacts]) -> tuple[int, DcgmFacts]:
    """Make the first pass. Returns the worker's pid, and what it read."""
    seen = await worker.observe()
    if seen.outcome is not PassOutcome.OBSERVED or seen.facts is None or seen.worker is None or seen.worker.pid is None:
        raise SystemExit(f"DCGM could not be read: {seen.error}")
    return seen.worker.pid, seen.facts


async def unpaced(folder: Path, gpus: int) -> tuple[list[float], dict[str, float]]:
    """Milliseconds of CPU of a pass, by round, and the memory after all of them. Every GPU is capping its power."""
    fake = FakeDcgm(folder, gpus=gpus)
    worker = worker_of(DcgmOptions(bindings=BINDINGS, address=ADDRESS), fake.environment)
    costs = []
    try:
        pid, _ = await first(worker)
        for gpu in range(gpus):
            fake.field(gpu, 240, 1)
        for _ in range(ROUNDS):
            before = cpu_ns(pid)
            for _ in range(PASSES):
                await worker.observe()
            costs.append((cpu_ns(pid) - before) / PASSES / 1e6)
        return costs, memory(pid)
    finally:
        await worker.close()


async def paced(options: DcgmOptions, window: float) -> tuple[list[float], dict[str, float], DcgmFacts]:
    """Per cent of a core, by window, at the interval of `options`; the memory after all of them, and the last facts."""
    worker = worker_of(options, {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ})
    shares = []
    try:
        pid, facts = await first(worker)
        for _ in range(SETTLE):
            await worker.observe()
        due = time.monotonic()
        for _ in range(ROUNDS):
            begun, before = time.monotonic(), cpu_ns(pid)
            for _ in range(round(window / options.interval)):
                await worker.observe()
                due += options.interval
                await asyncio.sleep(max(0.0, due - time.monotonic()))
            shares.append((cpu_ns(pid) - before) / (time.monotonic() - begun) / 1e7)
        return shares, memory(pid), facts
    finally:
        await worker.close()


def bare() -> dict[str, float]:
    """Return the memory of an interpreter that does nothing."""
    waiting = "import sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", waiting], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        return memory(process.pid)


def remembered(sizes: Mapping[str, float], interpreter: Mapping[str, float]) -> list[str]:
    """Return the columns about memory: PSS in MB, as a share of the limit and of the interpreter's, and RSS in MiB."""
    pss = sizes["PSS MiB"] * 1.048576
    ratio = sizes["PSS MiB"] / interpreter["PSS MiB"]
    return [f"{pss:.1f}", f"{pss / MEMORY_LIMIT:.2f}x", f"{ratio:.2f}x", f"{sizes['RSS MiB']:.1f}"]


MEMORY = ("PSS MB", f"of {MEMORY_LIMIT:g} MB", "of a bare Python's", "RSS MiB")


def with_the_double() -> None:
    rows = []
    interpreter = bare()
    for gpus in GPUS:
        with tempfile.TemporaryDirectory(prefix="gw-") as folder:
            costs, sizes = asyncio.run(unpaced(Path(folder), gpus))
        shares = [cost / (INTERVAL * 10.0) for cost in costs]
        ratio = spread([s / CPU_LIMIT for s in shares], 3) + "x"
        rows.append([gpus, *remembered(sizes, interpreter), spread(costs), spread(shares, 3), ratio])
    title = f"after {PASSES * ROUNDS} passes: memory, and CPU as median (least-most) of {ROUNDS} rounds of {PASSES}"
    head = ("GPUs", *MEMORY, "CPU ms a pass", f"% of a core, a pass each {INTERVAL:g} s", f"of {CPU_LIMIT} %")
    table(f"The DCGM worker, with the double of the bindings, {title}", head, rows)


def with_the_engine(bindings: str, address: str) -> None:
    rows = []
    interpreter = bare()
    for interval, window in PACES.items():
        options = DcgmOptions(bindings=bindings, address=address, interval=interval)
        shares, sizes, facts = asyncio.run(paced(options, window))
        costs = spread([share * interval * 10.0 for share in shares])
        ratio = spread([share / CPU_LIMIT for share in shares], 3) + "x"
        rows.append([
            f"{interval:g} s", facts.engine_version, len(facts.gpus), *remembered(sizes, interpreter), costs,
            spread(shares, 3), ratio,
        ])  # fmt: skip
    head = ("a pass each", "engine", "GPUs", *MEMORY, "CPU ms a pass", "% of a core", f"of {CPU_LIMIT} %")
    table(f"The DCGM worker, with the engine at {address}: CPU as median (least-most) of {ROUNDS} windows", head, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bindings", default="", help="the folder with pydcgm.py; default: where DCGM installs it")
    parser.add_argument("--address", default="", help="unix:///path or host:port of a running nv-hostengine")
    arguments = parser.parse_args()
    if arguments.address:
        with_the_engine(arguments.bindings, arguments.address)
    else:
        with_the_double()


if __name__ == "__main__":
    main()
