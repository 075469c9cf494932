"""What the worker that reads DCGM takes: memory, and CPU of a pass, with the double of the bindings.

The double costs what the real library does not (it reads and writes its engine, a file, at every call) and spares what it
does: its parsing of messages, and the wait for the engine. Both numbers are of our process alone, not of nv-hostengine.
A bare Python interpreter, asleep, stands beside it, since most of the memory is its.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

from bench_footprint import memory
from common import cpu_ns, spread, table
from gpuwarden_collectors.base import PassOutcome
from gpuwarden_collectors.dcgm.facts import DcgmFacts
from gpuwarden_collectors.dcgm.options import DcgmOptions
from gpuwarden_collectors.worker import Worker
from gpuwarden_collectors.worker_life import WorkerLimits
from support.dcgm import ADDRESS, BINDINGS, FakeDcgm

GPUS = (1, 8, 16)
PASSES, ROUNDS = 20, 12
MEMORY_LIMIT, CPU_LIMIT = 40.0, 0.5  # MB of PSS, per cent of a core
INTERVAL = DcgmOptions().interval


async def measured(folder: Path, gpus: int) -> tuple[list[float], dict[str, float]]:
    """Milliseconds of CPU of a pass, by round, and the memory after all of them. Every GPU is capping its power."""
    fake = FakeDcgm(folder, gpus=gpus)
    worker: Worker[DcgmFacts] = Worker(
        "dcgm",
        "gpuwarden_collectors.dcgm.reader:DcgmReader",
        DcgmFacts,
        limits=WorkerLimits(deadline=60.0),
        on_event=lambda _: None,
        options=DcgmOptions(bindings=BINDINGS, address=ADDRESS),
        environment={"PYTHONPATH": ":".join(sys.path), **fake.environment},
    )
    costs = []
    try:
        seen = await worker.observe()
        if seen.outcome is not PassOutcome.OBSERVED or seen.worker is None or seen.worker.pid is None:
            raise SystemExit(f"DCGM could not be read: {seen.error}")
        for gpu in range(gpus):
            fake.field(gpu, 240, 1)
        for _ in range(ROUNDS):
            before = cpu_ns(seen.worker.pid)
            for _ in range(PASSES):
                await worker.observe()
            costs.append((cpu_ns(seen.worker.pid) - before) / PASSES / 1e6)
        return costs, memory(seen.worker.pid)
    finally:
        await worker.close()


def bare() -> dict[str, float]:
    """An interpreter that does nothing."""
    waiting = "import sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", waiting], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        return memory(process.pid)


def main() -> None:
    rows = []
    interpreter = bare()
    for gpus in GPUS:
        with tempfile.TemporaryDirectory(prefix="gw-") as folder:
            costs, found = asyncio.run(measured(Path(folder), gpus))
        pss = found["PSS MiB"] * 1.048576
        shares = [cost / (INTERVAL * 10.0) for cost in costs]
        rows.append(
            [
                gpus, f"{pss:.1f}", f"{pss / MEMORY_LIMIT:.2f}x", f"{found['PSS MiB'] / interpreter['PSS MiB']:.2f}x",
                f"{found['RSS MiB']:.1f}", spread(costs), spread(shares, 3), spread([s / CPU_LIMIT for s in shares], 3) + "x",
            ]
        )  # fmt: skip
    table(
        f"The DCGM worker, after {PASSES * ROUNDS} passes: memory, and CPU as median (least-most) of {ROUNDS} rounds of {PASSES}",
        (
            "GPUs", "PSS MB", f"of {MEMORY_LIMIT:g} MB", "of a bare Python's", "RSS MiB", "CPU ms a pass",
            f"% of a core, a pass each {INTERVAL:g} s", f"of {CPU_LIMIT} %",
        ),
        rows,
    )  # fmt: skip


if __name__ == "__main__":
    main()
