"""The cost of a scrape of `/metrics`, compared with an aiohttp server that returns the same bytes from memory.

Both are separate processes and get requests in turns; a ratio is of two neighbours in time. The daemon makes a pass each
second meanwhile. Then the cost of a page, which is made for the first scrape of a pass, and the time in which the daemon
does not answer: a client that requests /healthz repeatedly sees every pause of the loop.
"""

from __future__ import annotations

import gzip
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from common import cpu_ns, fake_host, percentile, scrape, spread, table, wait_for_all
from gpuwarden.publish.metrics.exposition import Renderer
from load import load
from support.daemons import FakeHost
from support.whole_snapshots import everything

NODES = ((8, 0), (16, 7))  # GPUs, and MIG instances of each
RUNS = 7
PASSES = 20  # watched for pauses of the loop
SECONDS = 0.8  # of each turn of each server
CLIENTS = (1, 8)
ENCODINGS = ("identity", "gzip")
P50_LIMIT, P99_LIMIT = 1.3, 2.0


@dataclass(frozen=True)
class Server:
    pid: int
    port: int


@dataclass(frozen=True)
class Turn:
    """Milliseconds of a scrape, and CPU microseconds of the server for each."""

    p50: float
    p99: float
    cpu: float


@contextmanager
def memory_server(folder: Path, bodies: list[bytes]) -> Iterator[Server]:
    files = [folder / f"page{number}" for number in range(len(bodies))]
    for file, body in zip(files, bodies, strict=True):
        file.write_bytes(body)
    script = Path(__file__).with_name("memory_server.py")
    process = subprocess.Popen([sys.executable, script, *files], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield Server(process.pid, int(process.stdout.readline()))
    finally:
        process.kill()
        process.communicate()


def turn(server: Server, clients: int, encoding: str, seconds: float = SECONDS) -> Turn:
    before = cpu_ns(server.pid)
    took = load(server.port, clients=clients, seconds=seconds, encoding=encoding)
    cpu = (cpu_ns(server.pid) - before) / len(took) / 1e3
    return Turn(percentile(took, 0.5) / 1e6, percentile(took, 0.99) / 1e6, cpu)


def measured(ours: Server, memory: Server, clients: int, encoding: str) -> list[tuple[Turn, Turn]]:
    """Return (daemon, memory) for each run; the order changes from run to run."""
    turns = []
    for run in range(RUNS):
        order = (ours, memory) if run % 2 else (memory, ours)
        result = {server: turn(server, clients, encoding) for server in order}
        turns.append((result[ours], result[memory]))
    return turns


def row(encoding: str, clients: int, size: int, turns: list[tuple[Turn, Turn]]) -> list[str]:
    def ratio(attribute: str) -> str:
        return spread([getattr(ours, attribute) / getattr(memory, attribute) for ours, memory in turns])

    def of(which: int, attribute: str, decimals: int = 3) -> str:
        return spread([getattr(pair[which], attribute) for pair in turns], decimals)

    return [
        f"{encoding} {size / 1000:.0f} kB", str(clients), of(0, "p50"), of(1, "p50"), ratio("p50"), of(0, "p99"), of(1, "p99"),
        ratio("p99"), of(0, "cpu", 0), ratio("cpu"),
    ]  # fmt: skip


def divide(host: FakeHost, instances: int) -> None:
    if instances:
        lines = (f"mig * {7 + number} 0 1g.10gb 9728" for number in range(instances))
        host.fake.add("set * mig_mode 1", *lines)


def scrapes(gpus: int, instances: int) -> None:
    with fake_host(gpus=gpus, interval=1.0) as host:
        divide(host, instances)
        with host.daemon() as daemon:
            wait_for_all(daemon, gpus)
            bodies = [scrape(daemon.port, {"Accept-Encoding": encoding}) for encoding in ENCODINGS]
            series = sum(line[:1] != b"#" for line in bodies[0].splitlines())
            ours = Server(daemon.process.pid, daemon.port)
            with memory_server(host.folder, bodies) as memory:
                for server in (ours, memory):
                    turn(server, max(CLIENTS), "identity")
                rows = [
                    row(encoding, clients, len(body), measured(ours, memory, clients, encoding))
                    for encoding, body in zip(ENCODINGS, bodies, strict=True)
                    for clients in CLIENTS
                ]
                quiet = load(memory.port, clients=1, seconds=PASSES, encoding="gzip", path="/healthz")
            pauses = load(daemon.port, clients=1, seconds=PASSES, encoding="identity", path="/healthz")
    head = (
        "page", "clients", "p50 ms", "memory p50 ms", f"p50 ratio (<= {P50_LIMIT})", "p99 ms", "memory p99 ms",
        f"p99 ratio (<= {P99_LIMIT:g})", "CPU us", "CPU ratio",
    )  # fmt: skip
    title = f"{gpus} GPUs x {instances} MIG instances, {series:,} series"
    table(f"Scrape of /metrics, {title}, keep-alive: median (least-most) of {RUNS} interleaved runs", head, rows)
    cells = [
        [name, f"{percentile(took, 0.5) / 1e6:.2f}", f"{percentile(took, 1 - PASSES / len(took)) / 1e6:.2f}", f"{max(took) / 1e6:.1f}"]
        for name, took in (("daemon", pauses), ("memory server", quiet))
    ]  # fmt: skip
    table(
        f"/healthz for {PASSES} passes, {title}, ms: a pause of the loop delays one answer in each pass",
        ("server", "p50", f"the {PASSES}th longest", "longest"), cells,
    )  # fmt: skip


def cpu_ms(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return (time.process_time() - start) * 1e3


def pages() -> None:
    rows = []
    for gpus, instances in NODES:
        renderer, shown = Renderer(), everything(gpus, instances)
        page = renderer.render(shown)
        rendered = [cpu_ms(lambda: renderer.render(shown).openmetrics_gzip) for _ in range(RUNS * 3)]  # noqa: B023 - called here
        packed = [cpu_ms(partial(gzip.compress, page.text, 1, mtime=0)) for _ in range(RUNS * 3)]
        sizes = (f"{page.series:,}", f"{len(page.text) / 1000:.0f}", f"{len(page.text_gzip) / 1000:.0f}")
        rows.append((f"{gpus} x {instances}", *sizes, spread(rendered), spread(packed)))
    head = ("GPUs x instances", "series", "kB", "kB gzip", "CPU ms, a compressed form", "of it gzip")
    table("One page, with everything on and much wrong: made for the first scrape of a pass", head, rows)


def main() -> None:
    pages()
    for gpus, instances in NODES:
        scrapes(gpus, instances)


if __name__ == "__main__":
    main()
