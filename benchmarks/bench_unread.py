"""A scrape beside 250 clients that each ask for fifty pages and read none, three waves of them: its delay, and the memory of the daemon.

A scrape's time is divided by the median before the clients came: `seconds` show how much longer it took on this machine. Exit code 1 if
a wave delayed a scrape by more than `WANTED_DELAY`, or took more memory than `WANTED_MEMORY`.
"""

from __future__ import annotations

import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from common import DriverHost, percentile, scrape, spread, table, wait_for_all
from support.daemons import RunningDaemon
from support.responders import memory

GPUS = (8, 48)
CLIENTS = 250
WAVES = 3
AHEAD = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n" * 50
SCRAPES = 30
MEMORY_BACK_WITHIN = 60.0
WANTED_MEMORY = 16  # MiB more than before
WANTED_DELAY = 0.5  # seconds
TEXT = {"Accept-Encoding": "identity"}


@contextmanager
def unread(port: int) -> Iterator[None]:
    clients = []
    try:
        for _ in range(CLIENTS):
            clients.append(socket.create_connection(("127.0.0.1", port), timeout=10))
            clients[-1].sendall(AHEAD)
        yield
    finally:
        for client in clients:
            client.close()


@contextmanager
def most_memory(pid: int) -> Iterator[list[int]]:
    """PSS in KiB, sampled until the end; the list has the most."""
    most, ended = [memory(pid)["Pss"]], threading.Event()

    def sample() -> None:
        while not ended.wait(0.05):
            most[0] = max(most[0], memory(pid)["Pss"])

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield most
    finally:
        ended.set()
        thread.join()


def scrapes(port: int) -> list[float]:
    took = []
    for _ in range(SCRAPES):
        begun = time.monotonic()
        scrape(port, TEXT, 60.0)
        took.append(time.monotonic() - begun)
    return took


@contextmanager
def simulated(gpus: int) -> Iterator[RunningDaemon]:
    """The fake library has 16 GPUs at most."""
    with tempfile.TemporaryDirectory(prefix="gw-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        host = DriverHost(folder, folder / "gpuwarden.toml", folder / "run")
        host.config.write_text(
            f'[publish]\nlisten = "127.0.0.1:0"\n[run]\ndir = "{host.run_dir}"\n[state]\ndir = "{folder / "state"}"\n'
        )
        daemon = RunningDaemon(host, prefix=("sh", "-c", f'exec "$@" --simulate {gpus}', "sh"))
        try:
            daemon.find_port()
            yield daemon
        finally:
            daemon.kill()


@dataclass(frozen=True)
class Measured:
    """Scrapes at one time. `usual`: seconds of a scrape before the clients came; `grown`: growth of PSS in KiB since then."""

    when: str
    took: list[float]
    usual: float
    grown: int
    within: bool
    """True if the limits hold at this time."""

    @property
    def delay(self) -> float:
        return max(self.took) - self.usual

    @property
    def exceeds(self) -> bool:
        return self.within and (self.delay > WANTED_DELAY or self.grown > WANTED_MEMORY << 10)

    def row(self) -> list[str]:
        ratios = [seconds / self.usual for seconds in self.took]
        return [
            self.when,
            spread(ratios, 1),
            f"{percentile(ratios, 0.99):.1f}",
            f"{self.delay:.2f}",
            f"{self.grown / 1024:+.1f}",
        ]


def measured(gpus: int) -> Iterator[Measured]:
    with simulated(gpus) as daemon:
        wait_for_all(daemon, gpus)
        scrapes(daemon.port)  # the first pages take memory that stays
        with most_memory(daemon.process.pid) as before:
            calm = scrapes(daemon.port)
        usual = percentile(calm, 0.5)
        yield Measured("before", calm, usual, 0, within=False)
        for wave in range(WAVES):
            with most_memory(daemon.process.pid) as most, unread(daemon.port):
                beside = scrapes(daemon.port)
            yield Measured(f"wave {wave + 1}", beside, usual, most[0] - before[0], within=True)
        wait(daemon)
        with most_memory(daemon.process.pid) as later:
            after = scrapes(daemon.port)
        yield Measured(f"{MEMORY_BACK_WITHIN:.0f} s later", after, usual, later[0] - before[0], within=False)


def wait(daemon: RunningDaemon) -> None:
    end = time.monotonic() + MEMORY_BACK_WITHIN
    while time.monotonic() < end:
        assert daemon.process.poll() is None
        time.sleep(1)


def main() -> int:
    head = (
        "GPUs",
        "when",
        "scrape, ratio to the median before",
        "p99",
        "longest delay s",
        "most PSS, MiB more than before",
    )
    waves = [(gpus, wave) for gpus in GPUS for wave in measured(gpus)]
    table(
        f"A scrape beside {CLIENTS} clients that read nothing (wanted: <= {WANTED_DELAY} s, <= {WANTED_MEMORY} MiB)",
        head,
        [[str(gpus), *wave.row()] for gpus, wave in waves],
    )
    return int(any(wave.exceeds for _, wave in waves))


if __name__ == "__main__":
    sys.exit(main())
