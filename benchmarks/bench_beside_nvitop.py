"""CPU and memory of the daemon and nvitop-exporter on the same GPUs, in one run, each at its own default interval.

    python3 -m venv .venv-nvitop && .venv-nvitop/bin/pip install nvitop-exporter
    benchmarks/bench_beside_nvitop.py --nvitop .venv-nvitop/bin/nvitop-exporter [--minutes 10]

Both read eight GPUs of the compiled library at the CPU cost of an H100's, and are scraped every 15 s. Memory is PSS of all processes of each: a
page that both use counts half for each of them. Exit status 1 above the required ratio of memory or CPU; 0 with a reason if the exporter is
not installed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from bench_footprint import FORMS, WINDOW, memory, processes, shares
from common import fake_host, scrape, spread, table, wait_for_all
from support.daemons import PATIENCE, FakeHost

GPUS = 8
CPU_RATIO, MEMORY_RATIO = 0.75, 1.5
SETTLE = 60.0
"""Seconds: each GPU's first full reading."""


def exporter(program: str, host: FakeHost) -> tuple[subprocess.Popen[bytes], int]:
    """Start nvitop-exporter on a host's library, and return it with its port."""
    library = host.fake.beside_control()
    name = library.with_name("libnvidia-ml.so.1")
    if name != library:
        shutil.copy(library, name)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    variables = {**os.environ, **host.fake.environment, "LD_LIBRARY_PATH": str(name.parent)}
    words = [program, "--port", str(port), "--hostname", "localhost"]
    process = subprocess.Popen(words, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and process.poll() is None:
        try:
            page = scrape(port, {})
        except OSError:
            page = b""
        if page.count(b'index="') >= GPUS:
            return process, port
        time.sleep(0.2)
    process.kill()
    raise SystemExit(f"{program} shows no {GPUS} GPUs of {name}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nvitop", default="nvitop-exporter", help="the program")
    parser.add_argument("--minutes", type=float, default=10.0)
    options = parser.parse_args()
    program = shutil.which(options.nvitop)
    if program is None:
        print(f"not measured: no {options.nvitop} here; pip install nvitop-exporter in an environment of its own")
        return 0
    with ExitStack() as stack:
        ours, theirs = (stack.enter_context(fake_host(gpus=GPUS, device=True)) for _ in range(2))
        daemon = stack.enter_context(ours.daemon())
        wait_for_all(daemon, GPUS)
        other, port = exporter(str(Path(program).absolute()), theirs)
        stack.callback(other.wait)
        stack.callback(other.kill)
        pids = {"gpuwarden": processes(daemon), "nvitop-exporter": {"exporter": other.pid}}
        windows = max(1, round(60.0 * options.minutes / WINDOW))
        by_program = shares(list(pids.values()), {daemon.port: FORMS["text, gzip"], port: {}}, windows, SETTLE)
        used = {
            name: [sum(window) for window in zip(*windows_of.values(), strict=True)]
            for name, windows_of in zip(pids, by_program, strict=True)
        }
        pss = {name: sum(memory(pid)["PSS MiB"] for pid in group.values()) for name, group in pids.items()}
        pages = {"gpuwarden": scrape(daemon.port, FORMS["text"]), "nvitop-exporter": scrape(port, {})}
    series = {name: sum(not line.startswith(b"#") for line in page.splitlines()) for name, page in pages.items()}
    mean = {name: sum(values) / len(values) for name, values in used.items()}
    table(
        f"{GPUS} GPUs at the cost of an H100's: CPU of one core, median (least-most) of windows of {WINDOW:g} s",
        ("program", "CPU %", "mean %", "PSS MiB", "series"),
        [(name, spread(used[name], 3), f"{mean[name]:.3f}", f"{pss[name]:.1f}", series[name]) for name in pids],
    )
    cpu, most = mean["gpuwarden"] / mean["nvitop-exporter"], pss["gpuwarden"] / pss["nvitop-exporter"]
    print(f"CPU {cpu:.2f}x (required <= {CPU_RATIO}x), memory {most:.2f}x (required <= {MEMORY_RATIO}x)")
    return int(cpu > CPU_RATIO or most > MEMORY_RATIO)


if __name__ == "__main__":
    sys.exit(main())
