"""The time of a response of our node health check, compared with a grpclib echo server on the same kind of socket.

Both servers are separate processes and get requests in turns, each on a new connection, as from ft_launcher; a ratio is of
neighbours in time. ft_launcher sends one request before each rendezvous and waits for 60 s at most.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common import percentile, spread, table
from support.nvhcd import METHOD, asked
from support.responders import activated, marker, memory, unix, verdict, waited

RUNS = 9
QUESTIONS = 100  # of each turn
WANTED = 3.0
REQUEST = b"\x0a\x0a--no-slurm"
ECHO = """
import asyncio, sys
from grpclib.const import Cardinality, Handler
from grpclib.encoding.base import CodecBase
from grpclib.server import Server

class Bytes(CodecBase):
    __content_subtype__ = "proto"
    def encode(self, message, message_type):
        return message
    def decode(self, data, message_type):
        return data

class Echo:
    async def run(self, stream):
        await stream.send_message(await stream.recv_message())
    def __mapping__(self):
        return {sys.argv[2]: Handler(self.run, Cardinality.UNARY_UNARY, bytes, bytes)}

async def main():
    server = Server([Echo()], codec=Bytes())
    await server.start(path=sys.argv[1])
    await server.wait_closed()

asyncio.run(main())
"""


@contextmanager
def echo(path: Path) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", ECHO, str(path), METHOD])
    try:
        waited(lambda: answers(path), "the echo")
        yield
    finally:
        process.kill()
        process.wait()


def answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


async def turn(path: Path) -> list[float]:
    """Return the milliseconds of each request."""
    took = []
    for _ in range(QUESTIONS):
        begun = time.perf_counter()
        await asked(path, REQUEST)
        took.append((time.perf_counter() - begun) * 1e3)
    return took


async def measured(ours: Path, theirs: Path) -> list[list[str]]:
    rows = []
    runs = []
    for run in range(RUNS + 1):
        order = (ours, theirs) if run % 2 else (theirs, ours)
        took = {path: await turn(path) for path in order}
        runs.append((took[ours], took[theirs]))
    for share in (0.5, 0.99):
        pairs = [(percentile(a, share), percentile(b, share)) for a, b in runs[1:]]  # the first one warms up
        columns = [spread([pair[n] for pair in pairs], 3) for n in (1, 0)]
        ratios = spread([a / b for a, b in pairs])
        rows.append([f"p{share * 100:.0f}", *columns, ratios, f"<= {WANTED:g}" if share > 0.9 else ""])
    return rows


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="gw-") as name:
        folder = Path(name)
        ours, theirs = folder / "nvhcd.sock", folder / "echo.sock"
        verdict(folder, "failure", fresh_for=100_000)
        marker(folder, "nvhcd")
        with activated(unix(ours), "nvhcd", "--run-dir", folder, folder=folder) as service, echo(theirs):
            rows = asyncio.run(measured(ours, theirs))
            pss = memory(service.process.pid)["Pss"] / 1024 if service.process else 0.0
    head = ("", "echo ms", "node health check ms", "ratio", "wanted")
    table(
        f"nvhcd, {QUESTIONS} questions a turn: median (least-most) of {RUNS} interleaved runs; PSS {pss:.1f} MiB",
        head,
        rows,
    )


if __name__ == "__main__":
    main()
