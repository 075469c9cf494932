"""The cost of the black box on a node of eight GPUs: CPU and memory of daemons with and without it, in one run.

    benchmarks/bench_black_box.py [--pairs 2] [--minutes 10]

The GPUs are those of the compiled library at the CPU cost of an H100's, a pass every 5 s and a page every 15 s, as in production. Pairs run
side by side. A difference between two daemons of one kind is not due to the box, so their spread shows how much a difference means. The box
runs in the daemon's process; the workers are alike. Memory is the process's own (USS), which other programs do not change.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from contextlib import ExitStack

from bench_footprint import FORMS, WINDOW, memory, shares
from common import fake_host, spread, table, wait_for_all

GPUS = 8
CPU_LIMIT, MEMORY_LIMIT = 0.03, 1.5
"""Per cent of a core, and MiB, more than without."""
KINDS = {"without": "[black_box]\nenabled = false\n", "with": ""}
SETTLE = 60.0
"""Seconds: each GPU's first full reading, and the first flush of the ring."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=10.0)
    options = parser.parse_args()
    kinds = [kind for _ in range(options.pairs) for kind in KINDS]
    with ExitStack() as stack:
        daemons = []
        for kind in kinds:
            host = stack.enter_context(fake_host(gpus=GPUS, device=True))
            with host.config.open("a") as config:
                config.write(KINDS[kind])
            daemons.append(stack.enter_context(host.daemon()))
        for daemon in daemons:
            wait_for_all(daemon, GPUS)
        pids = [{"daemon": daemon.process.pid} for daemon in daemons]
        windows = max(1, round(60.0 * options.minutes / WINDOW))
        used = shares(pids, {daemon.port: FORMS["text, gzip"] for daemon in daemons}, windows, SETTLE)
        cpu = [statistics.mean(turn["daemon"]) for turn in used]
        own = [memory(daemon.process.pid)["USS MiB"] for daemon in daemons]
    figures = {"CPU of the daemon, per cent of a core": (cpu, CPU_LIMIT), "own memory, MiB": (own, MEMORY_LIMIT)}
    rows, missed = [], False
    for figure, (values, limit) in figures.items():
        by_kind = {kind: [value for of, value in zip(kinds, values, strict=True) if of == kind] for kind in KINDS}
        more = statistics.mean(by_kind["with"]) - statistics.mean(by_kind["without"])
        missed = missed or more > limit
        rows.append((figure, *(spread(by_kind[kind], 3) for kind in KINDS), f"{more:+.3f}", f"<= +{limit}"))
    table(f"The black box of {GPUS} GPUs", ("what", *KINDS, "more", "required"), rows)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
