"""A scrape beside 250 clients that each ask for fifty pages and read none: its time, and the memory of the daemon around it."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

from common import fake_host, percentile, scrape, spread, table, wait_for_all
from support.daemons import RunningDaemon
from support.responders import memory

GPUS = 8
CLIENTS = 250
AHEAD = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n" * 50
SCRAPES = 30
MEMORY_BACK_WITHIN = 60.0
WANTED = 0.2  # seconds
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


def scrapes(port: int) -> list[float]:
    took = []
    for _ in range(SCRAPES):
        begun = time.monotonic()
        scrape(port, TEXT)
        took.append(time.monotonic() - begun)
    return took


def row(when: str, daemon: RunningDaemon, took: list[float]) -> list[str]:
    milliseconds = [seconds * 1000 for seconds in took]
    return [
        when,
        spread(milliseconds, 1),
        f"{percentile(milliseconds, 0.99):.0f}",
        f"{memory(daemon.process.pid)['Pss'] / 1024:.0f}",
    ]


def main() -> None:
    with fake_host(gpus=GPUS) as host, host.daemon() as daemon:
        wait_for_all(daemon, GPUS)
        rows = [row("before", daemon, scrapes(daemon.port))]
        with unread(daemon.port):
            rows.append(row(f"beside {CLIENTS} that read nothing", daemon, scrapes(daemon.port)))
        end = time.monotonic() + MEMORY_BACK_WITHIN
        while time.monotonic() < end:
            time.sleep(1)
        rows.append(row(f"{MEMORY_BACK_WITHIN:.0f} s later", daemon, scrapes(daemon.port)))
    table(f"A scrape of {GPUS} GPUs (wanted: {WANTED * 1000:.0f} ms)", ("when", "ms", "p99 ms", "PSS MiB"), rows)


if __name__ == "__main__":
    main()
