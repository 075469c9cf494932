"""The CPU of a daemon on simulated GPUs, against one on the compiled fake library with an H100's prices.

Both have 8 GPUs, a pass each 5 s and no scrapes, run at once and are measured in the same windows. The simulated host has its
kernel log and its faults in files. Required: a demonstration costs no more than the real thing.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench_footprint import processes
from common import cpu_ns, fake_host, spread, table, wait_for_all
from support.commands import COMMAND, environment
from support.simulated_nodes import SimulatedNode

GPUS = 8
WINDOW, WINDOWS = 10.0, 12  # seconds of each, and how many
SETTLE = 60.0  # each GPU's first reading in full, one GPU in each pass


@contextmanager
def simulated() -> Iterator[SimulatedNode]:
    with tempfile.TemporaryDirectory(prefix="gw-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        config = folder / "gpuwarden.toml"
        config.write_text(
            f'[publish]\nlisten = "127.0.0.1:0"\n[run]\ndir = "{folder / "run"}"\n[state]\ndir = "{folder / "state"}"\n'
        )
        command = [*COMMAND, "run", "--simulate", str(GPUS), "--config", str(config)]
        node = SimulatedNode(
            "simulated", folder, subprocess.Popen(command, env=environment(folder), stderr=subprocess.DEVNULL)
        )
        try:
            yield node
        finally:
            node.kill()


def main() -> None:
    with ExitStack() as stack:
        real = stack.enter_context(stack.enter_context(fake_host(gpus=GPUS, device=True)).daemon())
        both = (real, stack.enter_context(simulated()))
        wait_for_all(real, GPUS)
        time.sleep(SETTLE)
        pids = [[*processes(daemon).values()] for daemon in both]
        used: list[list[float]] = [[], []]
        for _ in range(WINDOWS):
            before = [sum(map(cpu_ns, group)) for group in pids]
            begun = time.monotonic()
            time.sleep(WINDOW)
            taken = time.monotonic() - begun
            for shares, group, old in zip(used, pids, before, strict=True):
                shares.append((sum(map(cpu_ns, group)) - old) / taken / 1e7)
    ratios = [mine / other for other, mine in zip(*used, strict=True)]
    rows = [
        ["the compiled library, an H100's prices", spread(used[0], 3), ""],
        [f"run --simulate {GPUS}", spread(used[1], 3), ""],
        ["simulated / compiled", spread(ratios), "median <= 1"],
    ]
    title = f"CPU of one core of daemon and worker, per cent: median (least-most) of {WINDOWS} windows of {WINDOW:g} s"
    table(title, ("what", "measured", "required"), rows)


if __name__ == "__main__":
    main()
