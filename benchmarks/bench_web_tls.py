"""The cost of a scrape of `/metrics` over TLS, and over TLS with a password, compared with plain HTTP.

Three daemons get requests in turns; a ratio is of two neighbours in time. One client uses a kept connection, as
Prometheus does at intervals below ten seconds, and a new one each time, as it does above: then the handshake is
included. The client's own time for TLS is in all times, but not in the CPU, which is the daemon's.
"""

from __future__ import annotations

import base64
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from common import cpu_ns, fake_host, percentile, spread, table
from support.daemons import RunningDaemon
from support.web_certificates import Site, trusting, users

GPUS = 8
RUNS = 7
SECONDS = 0.8  # of each turn of each server
MODES = ("plain", "TLS", "TLS and password")
LOGIN = base64.b64encode(b"prometheus:secret").decode()
BUFFER = 1 << 18


@dataclass(frozen=True)
class Turn:
    """Milliseconds of a scrape, and CPU microseconds of the daemon for each."""

    p50: float
    p99: float
    cpu: float


@dataclass(frozen=True)
class Server:
    """`tls` None: plain HTTP."""

    pid: int
    port: int
    tls: ssl.SSLContext | None

    def connect(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection if self.tls is None else self.tls.wrap_socket(connection, server_hostname="localhost")


@contextmanager
def server(mode: str) -> Iterator[Server]:
    with fake_host(gpus=GPUS, interval=1.0) as host:
        tls = None
        if mode != "plain":
            (host.folder / "web").mkdir()
            site = Site(host.folder / "web")
            site.write(site.serve(), users(cost=10, prometheus="secret") if mode != "TLS" else "")
            text = host.config.read_text().replace("[publish]\n", f'[publish]\nweb_config = "{site.path}"\n')
            host.config.write_text(text)
            tls = trusting()
        with host.daemon() as daemon:
            web_server = Server(daemon.process.pid, daemon.port, tls)
            daemon.wait(lambda: _ready(web_server, daemon), "all GPUs")
            yield web_server


def _ready(web_server: Server, daemon: RunningDaemon) -> bool:
    """Return True if the page has all GPUs, after a pause for further passes: a rate needs two."""
    connection = web_server.connect()
    body = scrape(connection, "identity").decode()
    connection.close()
    time.sleep(0.5)
    return f"gpuwarden_gpus_present {GPUS}" in body and daemon.process.poll() is None


def scrape(connection: socket.socket, encoding: str) -> bytes:
    head = f"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: {encoding}\r\nAuthorization: Basic {LOGIN}\r\n\r\n"
    connection.sendall(head.encode())
    received = bytearray(connection.recv(BUFFER))
    start = received.index(b"\r\n\r\n") + 4
    if not received.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(f"the server answered {bytes(received[:200])!r}")
    size = start + int(received.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])
    while len(received) < size:
        received += connection.recv(BUFFER)
    return bytes(received[start:])


def kept(web_server: Server, encoding: str) -> Callable[[], object]:
    connection = web_server.connect()
    return lambda: scrape(connection, encoding)


def new(web_server: Server, encoding: str) -> Callable[[], object]:
    def ask() -> None:
        with web_server.connect() as connection:
            scrape(connection, encoding)

    return ask


def turn(web_server: Server, way: Callable[[Server, str], Callable[[], object]], encoding: str) -> Turn:
    ask = way(web_server, encoding)
    ask()
    before, took = cpu_ns(web_server.pid), []
    end = time.perf_counter_ns() + int(SECONDS * 1e9)
    while (begun := time.perf_counter_ns()) < end:
        ask()
        took.append(time.perf_counter_ns() - begun)
    cpu = (cpu_ns(web_server.pid) - before) / len(took) / 1e3
    return Turn(percentile(took, 0.5) / 1e6, percentile(took, 0.99) / 1e6, cpu)


def rows(servers: dict[str, Server], name: str, encoding: str) -> Iterator[list[str]]:
    way = kept if name == "kept" else new
    runs: list[dict[str, Turn]] = []
    for run in range(RUNS):
        order = MODES if run % 2 else tuple(reversed(MODES))
        runs.append({mode: turn(servers[mode], way, encoding) for mode in order})
    for mode in MODES:
        values = [
            spread([getattr(run[mode], attribute) for run in runs], decimals)
            for attribute, decimals in (("p50", 3), ("p99", 3), ("cpu", 0))
        ]
        ratios = [
            spread([getattr(run[mode], attribute) / getattr(run["plain"], attribute) for run in runs])
            for attribute in ("p50", "p99", "cpu")
        ]
        yield [name, encoding, mode, *values, *ratios]


def main() -> None:
    with ExitStack() as stack:
        servers = {mode: stack.enter_context(server(mode)) for mode in MODES}
        shown = [
            row
            for name in ("kept", "new")
            for encoding in ("identity", "gzip")
            for row in rows(servers, name, encoding)
        ]
    head = ("connection", "page", "mode", "p50 ms", "p99 ms", "CPU us", "p50 ratio", "p99 ratio", "CPU ratio")
    table(f"Scrape of /metrics, {GPUS} GPUs, one client: median (least-most) of {RUNS} interleaved runs", head, shown)


if __name__ == "__main__":
    main()
