"""The footprint of the idle daemon and its workers: CPU, memory, threads, descriptors.

With no arguments: on the compiled fake library, whose calls use the CPU time that they took on an H100 (its memory is that
of a library that does nothing); then with the double of DCGM's bindings, too. With `--driver`: on the GPUs and the driver
of this machine. Each table shows which.

CPU is of one core: the mean over ten minutes at 5 s between passes (readings of each minute are due ten times, of each two minutes
five times), over two minutes at a shorter interval, and the spread of windows of 5 s. It is counted after the first full reading
of each GPU, whose slow parts recur once a day (1.1 s of CPU for eight H100). Two daemons run at a time, one of them scraped every
15 s; with `--driver` only that one. Memory is that of all processes of the daemon, when only that one runs, and again after its
NVML worker was killed and replaced. Other Python programs share pages with it, which makes PSS smaller: run it where there is
none, or with a private copy of the interpreter.

Memory goals are printed beside the requirements. Both are missed today (docs/develop/performance.md), and do not change the
exit code. The last table has what the libraries take alone: two processes that import them and do nothing.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import PIPE

from common import cpu_ns, daemon_on_driver, fake_host, scrape, spread, table, wait_for_all
from support.daemons import RunningDaemon, children, slots
from support.dcgm import BINDINGS, FakeDcgm, engine_process
from support.simulated_nodes import SimulatedNode

CPU_LIMITS = {(1, 5.0): 0.3, (8, 5.0): 0.8, (8, 1.0): None}
"""Per cent of a core, by GPUs and the interval of a pass in seconds."""
PSS_LIMIT, PSS_LIMIT_DRIVER, PSS_LIMIT_DCGM = 54, 68, 25
"""MiB, all processes together: of the fake library, of a driver; and what DCGM may add."""
PSS_GOALS = {PSS_LIMIT: 44, PSS_LIMIT_DRIVER: 60}
"""MiB, by what is required."""
SETTLE = 3.0
WINDOW = 5.0
LONG, SHORT = 120, 24  # windows
SCRAPE_EVERY = 3  # windows
FORMS = {
    "text": {"Accept-Encoding": "identity"},
    "text, gzip": {"Accept-Encoding": "gzip"},
    "OpenMetrics": {"Accept": "application/openmetrics-text", "Accept-Encoding": "identity"},
    "OpenMetrics, gzip": {"Accept": "application/openmetrics-text", "Accept-Encoding": "gzip"},
}
LIBRARIES = {"daemon": "gpuwarden.publish.web.http, structlog", "worker nvml": "pynvml, json"}
"""What each process cannot do without, by process. The first is the part of aiohttp that the daemon imports."""
MEMORY_HEAD = ("GPUs", "a pass each", "process", "PSS MiB", "USS MiB", "RSS MiB", "threads", "descriptors")

Row = list[object]


def processes(daemon: RunningDaemon | SimulatedNode) -> dict[str, int]:
    """Return the daemon and its workers, by what they read."""
    pids = {"daemon": daemon.process.pid}
    for pid in children(daemon.process.pid):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        reader = next((word for word in words if word.startswith("gpuwarden_collectors.") and ":" in word), words[0])
        pids[f"worker {reader.removeprefix('gpuwarden_collectors.').partition('.')[0]}"] = pid
    return pids


def shares(
    pids: Sequence[Mapping[str, int]], scraped: Mapping[int, Mapping[str, str]], windows: int, settle: float
) -> list[dict[str, list[float]]]:
    """Return per program, and per process of it, the per cent of a core used in each window. `scraped`: ports, with the headers of a scrape."""
    result: list[dict[str, list[float]]] = [{name: [] for name in group} for group in pids]
    time.sleep(settle)
    begun = time.monotonic()
    before = [{name: cpu_ns(pid) for name, pid in group.items()} for group in pids]
    for window in range(windows):
        if window % SCRAPE_EVERY == 1:
            for port, headers in scraped.items():
                scrape(port, headers)
        time.sleep(max(0.0, begun + (window + 1) * WINDOW - time.monotonic()))
        now = [{name: cpu_ns(pid) for name, pid in group.items()} for group in pids]
        for used, old, new in zip(result, before, now, strict=True):
            for name, values in used.items():
                values.append((new[name] - old[name]) / WINDOW / 1e7)
        before = now
    return result


def cpu_row(gpus: int, interval: float, scraped: str, used: Mapping[str, Sequence[float]]) -> Row:
    together = [sum(each) for each in zip(*used.values(), strict=True)]
    workers = [sum(each) for each in zip(*(v for name, v in used.items() if name != "daemon"), strict=True)]
    limit = CPU_LIMITS.get((gpus, interval))
    mean = sum(together) / len(together)
    each = [spread(values, 3) for values in (used["daemon"], workers, together)]
    return [gpus, f"{interval:g} s", scraped, *each, f"{mean:.3f}", "" if limit is None else f"<= {limit}"]


def memory(pid: int) -> dict[str, float]:
    """MiB from smaps_rollup, and counts."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    kib = {name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines)}
    return {
        "PSS MiB": kib["Pss"] / 1024,
        "USS MiB": (kib["Private_Clean"] + kib["Private_Dirty"]) / 1024,
        "RSS MiB": kib["Rss"] / 1024,
        "threads": len(list(Path(f"/proc/{pid}/task").iterdir())),
        "descriptors": len(list(Path(f"/proc/{pid}/fd").iterdir())),
    }


def memory_rows(gpus: int, interval: float, pids: Mapping[str, int]) -> list[Row]:
    """The last row: what PSS would be if no other Python ran here, for what workers share they share with the daemon."""
    by_process = {name: memory(pid) for name, pid in pids.items()}
    alone = by_process["daemon"]["RSS MiB"] + sum(
        figures["USS MiB"] for name, figures in by_process.items() if name != "daemon"
    )
    by_process["together"] = {
        column: sum(figures[column] for figures in by_process.values()) for column in by_process["daemon"]
    }
    here = [gpus, f"{interval:g} s"]
    rows: list[Row] = [
        [*here, name, *(round(value, 1) for value in figures.values())] for name, figures in by_process.items()
    ]
    return [*rows, [*here, "alone", round(alone, 1), "", "", "", ""]]


def replace_worker(daemon: RunningDaemon) -> None:
    """Kill the NVML worker, and wait for three passes of its successor."""
    before = processes(daemon)["worker nvml"]
    os.kill(before, signal.SIGKILL)
    daemon.wait(lambda: processes(daemon).get("worker nvml", before) != before, "another NVML worker")
    sequence = daemon.heartbeat()["sequence"]
    daemon.wait(lambda: daemon.heartbeat()["sequence"] > sequence + 3, "three passes")


def page_rows(daemon: RunningDaemon) -> list[list[str]]:
    bodies = {form: scrape(daemon.port, headers) for form, headers in FORMS.items()}
    samples = [line for line in bodies["text"].splitlines() if not line.startswith(b"#")]
    own = sum(line.startswith(b"gpuwarden_") for line in samples)
    return [
        [form, str(len(samples)), str(own), str(len(samples) - own), str(len(body))] for form, body in bodies.items()
    ]


class Found:
    """The rows of all tables, as they come."""

    def __init__(self, subject: str, pss_limit: int) -> None:
        self._what = subject
        self._limit = pss_limit
        self._cpu: list[Row] = []
        self._used: list[Row] = []
        self._replaced: list[Row] = []
        self._pages: list[list[str]] = []

    def measure(self, gpus: int, interval: float, scraped: RunningDaemon, quiet: RunningDaemon | None = None) -> None:
        daemons = {"no": quiet, "each 15 s": scraped}
        running = {how: daemon for how, daemon in daemons.items() if daemon is not None}
        windows = LONG if interval >= WINDOW else SHORT
        settle = SETTLE + (gpus + 2) * interval  # one GPU in a pass has its turn for what takes long
        pids = [processes(daemon) for daemon in running.values()]
        by_daemon = shares(pids, {scraped.port: FORMS["text, gzip"]}, windows, settle)
        for how, used in zip(running, by_daemon, strict=True):
            self._cpu.append(cpu_row(gpus, interval, how, used))
        if quiet is not None:
            quiet.stop()
        self._used += memory_rows(gpus, interval, processes(scraped))
        self._pages = page_rows(scraped)
        if interval > 1.0:
            replace_worker(scraped)
            self._replaced += memory_rows(gpus, interval, processes(scraped))

    def show(self) -> None:
        table(
            f"CPU of one core, {self._what}: median (least-most) of windows of {WINDOW:g} s, and the mean of all",
            ("GPUs", "a pass each", "scraped", "daemon %", "workers %", "together %", "mean together", "required"),
            self._cpu,
        )
        required = f"required: PSS together <= {self._limit} MiB; goal: <= {PSS_GOALS[self._limit]} MiB"
        table(f"Memory after these passes and scrapes, {self._what}; {required}", MEMORY_HEAD, self._used)
        table(f"The same once the NVML worker was killed and replaced; {required}", MEMORY_HEAD, self._replaced)
        table(f"/metrics, {self._what}", ("form", "series", "own", "DCGM names", "bytes"), self._pages)


def on_the_fake() -> None:
    footprint = Found("a fake library at H100 prices", PSS_LIMIT)
    for gpus, interval in CPU_LIMITS:
        with ExitStack() as stack:
            scraped, quiet = (
                stack.enter_context(stack.enter_context(fake_host(gpus=gpus, interval=interval, device=True)).daemon())
                for _ in range(2)
            )
            wait_for_all(scraped, gpus)
            wait_for_all(quiet, gpus)
            footprint.measure(gpus, interval, scraped, quiet)
    footprint.show()


def of_the_libraries() -> None:
    with ExitStack() as stack:
        pids = {}
        for name, imported in LIBRARIES.items():
            code = f"import {imported}\nprint(flush=True)\ninput()"
            process = subprocess.Popen([sys.executable, "-P", "-c", code], stdin=PIPE, stdout=PIPE)
            stack.callback(process.communicate, b"\n")
            assert process.stdout is not None
            process.stdout.readline()
            pids[name] = process.pid
        rows = memory_rows(0, 0.0, pids)
    table("Memory of the libraries alone: aiohttp and structlog, nvidia-ml-py", MEMORY_HEAD, rows)


@contextmanager
def beside_dcgm(gpus: int) -> Iterator[RunningDaemon]:
    with fake_host(gpus=gpus, device=True) as host:
        dcgm, place = FakeDcgm(host.folder, gpus=gpus), host.folder / "nv-hostengine"
        with dcgm.change() as engine:
            for gpu, slot in zip(engine["gpus"], slots(gpus), strict=True):
                gpu["slot"] = f"0000{slot}".upper()
        with host.config.open("a") as config:
            config.write(f'[collectors.dcgm]\nbindings = "{BINDINGS}"\naddress = "unix://{place}"\n')
        with engine_process(dcgm, place), host.daemon(more=dcgm.environment) as daemon:
            yield daemon


def with_the_double_of_dcgm(gpus: int = 8) -> None:
    with beside_dcgm(gpus) as daemon:
        wait_for_all(daemon, gpus)
        daemon.wait(lambda: "worker dcgm" in processes(daemon), "the DCGM worker")
        time.sleep(SETTLE + 30.0)
        rows = memory_rows(gpus, 5.0, processes(daemon))
    title = f"Memory with the double of DCGM's bindings (bench_dcgm.py measures real ones); allowed: {PSS_LIMIT_DCGM} MiB more"
    table(title, MEMORY_HEAD, rows)


def on_the_driver(interval: float) -> None:
    footprint = Found("the driver of this machine", PSS_LIMIT_DRIVER)
    with daemon_on_driver(interval) as daemon:
        daemon.wait(lambda: daemon.heartbeat()["sequence"] > 2, "passes")
        footprint.measure(daemon.heartbeat()["gpus"]["present"], interval, daemon)
    footprint.show()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--driver", action="store_true", help="the GPUs of this machine; needs no compiler")
    parser.add_argument("--interval", type=float, default=5.0, help="with --driver: seconds between passes")
    arguments = parser.parse_args()
    if arguments.driver:
        on_the_driver(arguments.interval)
    else:
        on_the_fake()
        with_the_double_of_dcgm()
        of_the_libraries()


if __name__ == "__main__":
    main()
