"""What a scrape of `/metrics` costs beside an aiohttp server that returns the same bytes from memory.

Both serve in processes of their own and are asked in turns; a ratio is of two neighbours in time. The daemon goes on
with its passes meanwhile, one each second.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from common import cpu_ns, fake_host, percentile, scrape, spread, table, wait_for_all
from load import load

GPUS = 8
RUNS = 7
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
    """(daemon, memory) for each run; who is asked first changes from run to run."""
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


def main() -> None:
    with fake_host(gpus=GPUS, interval=1.0) as host, host.daemon() as daemon:
        wait_for_all(daemon, GPUS)
        bodies = [scrape(daemon.port, {"Accept-Encoding": encoding}) for encoding in ENCODINGS]
        ours = Server(daemon.process.pid, daemon.port)
        with memory_server(host.folder, bodies) as memory:
            for server in (ours, memory):
                turn(server, max(CLIENTS), "identity")
            rows = [
                row(encoding, clients, len(body), measured(ours, memory, clients, encoding))
                for encoding, body in zip(ENCODINGS, bodies, strict=True)
                for clients in CLIENTS
            ]
    head = (
        "page", "clients", "p50 ms", "memory p50 ms", f"p50 ratio (<= {P50_LIMIT})", "p99 ms", "memory p99 ms",
        f"p99 ratio (<= {P99_LIMIT:g})", "CPU us", "CPU ratio",
    )  # fmt: skip
    table(f"Scrape of /metrics, {GPUS} GPUs, keep-alive: median (least-most) of {RUNS} interleaved runs", head, rows)


if __name__ == "__main__":
    main()
