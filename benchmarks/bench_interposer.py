"""The time that the interposer adds to a request of dstack's server to this host, compared with a bare aiohttp handler.

The handler represents dstack's own agent, and gets requests directly and through the interposer in turns, from one client; a
ratio is of neighbours in time. Requests use a kept connection, and a new one each time, as dstack's server does.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from common import percentile, spread, table
from support.daemons import listening_port
from support.responders import activated, marker, memory, tcp, verdict, waited

RUNS = 9
SECONDS = 0.6  # of each turn
WANTED = 3.0
HANDLER = """
from aiohttp import web
async def answer(request):
    return web.Response(body=b'{"dcgm":null}', content_type="application/json")
app = web.Application()
app.router.add_get("/api/instance/health", answer)
app.router.add_get("/api/healthcheck", answer)
web.run_app(app, host="127.0.0.1", port=0, print=None, access_log=None)
"""
ROUTES = ("/api/healthcheck", "/api/instance/health")


@contextmanager
def handler() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", HANDLER])
    try:
        waited(lambda: listening_port(process.pid), "the handler")
        yield listening_port(process.pid)
    finally:
        process.kill()
        process.wait()


def connect(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def ask(connection: socket.socket, route: str) -> None:
    connection.sendall(f"GET {route} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    received = connection.recv(1 << 16)
    while b"\r\n\r\n" not in received:
        received += connection.recv(1 << 16)
    head, _, body = received.partition(b"\r\n\r\n")
    size = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])
    while len(body) < size:
        body += connection.recv(1 << 16)


def kept(port: int, route: str) -> Callable[[], None]:
    connection = connect(port)
    return lambda: ask(connection, route)


def new(port: int, route: str) -> Callable[[], None]:
    def once() -> None:
        with connect(port) as connection:
            ask(connection, route)

    return once


def p50(question: Callable[[], None]) -> float:
    """Return the median time of the request in milliseconds."""
    took = []
    end = time.perf_counter() + SECONDS
    question()
    while (begun := time.perf_counter()) < end:
        question()
        took.append(time.perf_counter() - begun)
    return percentile(took, 0.5) * 1e3


def row(way: Callable[[int, str], Callable[[], None]], route: str, direct: int, through: int, case: str) -> list[str]:
    runs = []
    for run in range(RUNS):
        order = (direct, through) if run % 2 else (through, direct)
        runs.append({port: p50(way(port, route)) for port in order})
    added = [(run[through] - run[direct]) / run[direct] for run in runs]
    times = [spread([run[port] for run in runs], 3) for port in (direct, through)]
    return [case, way.__name__, *times, spread(added), f"<= {WANTED:g}"]


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="gw-") as name, handler() as direct:
        folder, listener = Path(name), tcp()
        through = listener.getsockname()[1]
        words = ("dstack-interposer", "--run-dir", folder, "--shim", f"127.0.0.1:{direct}")
        verdict(folder, fresh_for=100_000)
        with activated(listener, *words, folder=folder, GPUWARDEN_DSTACK__ENABLED="true") as service:
            kept(through, ROUTES[0])()
            rows = [row(way, ROUTES[0], direct, through, "any other route") for way in (kept, new)]
            rows += [row(way, ROUTES[1], direct, through, "health, healthy") for way in (kept, new)]
            marker(folder, "dstack")
            rows += [row(way, ROUTES[1], direct, through, "health, excluded") for way in (kept, new)]
            pss = memory(service.process.pid)["Pss"] / 1024 if service.process else 0.0
    head = ("question", "connection", "handler p50 ms", "through the interposer", "added, x handler", "wanted")
    table(
        f"dstack's interposer, one client: median (least-most) of {RUNS} interleaved runs; PSS {pss:.1f} MiB",
        head,
        rows,
    )


if __name__ == "__main__":
    main()
