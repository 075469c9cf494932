"""The time until the last rank of a full node has run its signal handler, against a plain kill(2) of the same ranks.

64 jobs of 8 ranks: processes that catch SIGTERM and note the time in a file that all of them map. In addition gpuwarden
checks each process again right before it signals it. Both are measured in turns, one after the other; the ranks are C, so
that 512 handlers cost the machine next to nothing.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from common import spread, table

sys.path.insert(1, str(Path(__file__).parents[1] / "daemon"))

from gpuwarden.features.evacuation.pidfd import Order, Result, send_all

JOBS, RANKS = 64, 8
TURNS = 31
PATIENCE = 60.0
PROGRAM = r"""
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>
static volatile uint64_t *cell;
static void note(int number) {
    struct timespec now;
    (void)number;
    clock_gettime(CLOCK_MONOTONIC, &now);
    *cell = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
int main(int count, char **words) {
    int ranks = atoi(words[2]), file = open(words[1], O_RDWR);
    uint64_t *cells = mmap(0, 8 * ranks, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    (void)count;
    for (int rank = 0; rank < ranks; rank++) {
        pid_t pid = fork();
        if (pid != 0) { dprintf(1, "%d\n", pid); continue; }
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        cell = cells + rank;
        signal(CAUGHT, note);
        *cell = 1;
        for (;;) pause();
    }
    for (;;) pause();
}
"""


@contextmanager
def running(ranks: int, caught: str = "TERM") -> Iterator[tuple[list[Order], mmap.mmap]]:
    """Run the ranks. Yields them, and the map that has a time for each, in nanoseconds."""
    with tempfile.TemporaryDirectory(prefix="gw-") as folder:
        program, cells = Path(folder, "rank"), Path(folder, "cells")
        options = ["-O2", "-w", f"-DCAUGHT=SIG{caught}", "-include", "stdio.h", "-x", "c"]
        compiler = ["cc", *options, "-", "-o", str(program)]
        subprocess.run(compiler, input=PROGRAM, text=True, check=True)
        cells.write_bytes(bytes(8 * ranks))
        with (
            cells.open("r+b") as file,
            mmap.mmap(file.fileno(), 8 * ranks) as times,
            subprocess.Popen([program, cells, str(ranks)], stdout=subprocess.PIPE, text=True) as parent,
        ):
            assert parent.stdout is not None
            try:
                pids = [int(parent.stdout.readline()) for _ in range(ranks)]
                last(times)  # until all of them catch it
                yield [Order(pid=pid, started=started(pid), uid=os.getuid(), signal=caught) for pid in pids], times
            finally:
                parent.kill()


def started(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[19])


def last(times: mmap.mmap) -> int:
    """Return the latest of the times, once every rank has written its own."""
    until = time.monotonic() + PATIENCE
    noted: tuple[int, ...] = ()
    while not (noted and all(noted)):
        noted = struct.unpack(f"={len(times) // 8}Q", times)
        if time.monotonic() > until:
            raise TimeoutError("not every rank has run its handler")
        time.sleep(0.001)
    return max(noted)


def signalled(orders: Sequence[Order], times: mmap.mmap) -> float:
    """Return the milliseconds until the last handler has run. As in the daemon: from its loop, by a thread."""
    times[:] = bytes(len(times))
    began = time.monotonic_ns()
    sent = asyncio.run(send_all(orders, deadline=PATIENCE))
    if {result.result for result in sent} != {Result.SENT}:
        raise RuntimeError(f"not all were signalled: {sent}")
    return (last(times) - began) / 1e6


def killed(orders: Sequence[Order], times: mmap.mmap) -> float:
    times[:] = bytes(len(times))
    began = time.monotonic_ns()
    for order in orders:
        os.kill(order.pid, signal.SIGTERM)
    return (last(times) - began) / 1e6


def main() -> None:
    ways = {"plain kill": killed, "tell": signalled}
    with running(JOBS * RANKS) as (orders, times):
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(TURNS):
            for name, way in ways.items():
                taken[name].append(way(orders, times))
    ratios = [ours / plain for ours, plain in zip(taken["tell"], taken["plain kill"], strict=True)]
    rows = [
        ("plain kill(2)", spread(taken["plain kill"]), "1", ""),
        ("signalled", spread(taken["tell"]), spread(ratios), "<= 1000 ms"),
    ]
    table(
        f"{JOBS} jobs of {RANKS} ranks signalled: from the call to the last handler run, {TURNS} turns: median (least-most); "
        f"{statistics.median(taken['tell']) / (JOBS * RANKS) * 1e3:.0f} us a rank",
        ("way", "ms", "against plain kill", "wanted"),
        rows,
    )


if __name__ == "__main__":
    main()
