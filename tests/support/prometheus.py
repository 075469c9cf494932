"""Debian's Prometheus, its promtool and Alertmanager as processes of a test: on loopback, on ports of the kernel's choice."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from support.daemons import PATIENCE, listening_port
from support.needs import unmet

Json = Any
PACKAGES = "apt-get install prometheus prometheus-alertmanager"


def program(name: str) -> str:
    return shutil.which(name) or unmet(f"needs Prometheus, promtool and Alertmanager ({PACKAGES})")


def promtool(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run promtool with a larger heap: collecting garbage takes a fifth of its time otherwise."""
    return subprocess.run(
        [program("promtool"), *map(str, words)], env={**os.environ, "GOGC": "400"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def wait(condition: Callable[[], object], awaited: str, log: Path | None = None) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(
                f"waited {PATIENCE:g} s in vain for {awaited}\n{log.read_text()[-3000:] if log else ''}"
            )
        time.sleep(0.05)


def ask(port: int, path: str, body: Json = None) -> Json:
    """The JSON answer of a server on loopback: to a GET, or, with a body, to a POST."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        if body is None:
            connection.request("GET", path)
        else:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        assert answer.status == 200, (path, answer.status, text[:500])
        return json.loads(text) if text else None
    finally:
        connection.close()


@dataclass(frozen=True, slots=True)
class Server:
    """A server of the test that runs."""

    port: int
    log: Path

    def query(self, expression: str) -> list[Json]:
        """Return Prometheus' answer to an instant query: a list of {metric, value}."""
        answer = ask(self.port, f"/api/v1/query?query={urllib.parse.quote(expression)}")
        result: list[Json] = answer["data"]["result"]
        return result

    def wait_query(self, expression: str) -> list[Json]:
        """Repeat the query until it has a result, and return that."""
        series: list[Json] = []

        def holds() -> bool:
            series[:] = self.query(expression)
            return bool(series)

        wait(holds, expression, self.log)
        return series


@contextmanager
def _running(name: str, words: Sequence[str | Path], folder: Path) -> Iterator[Server]:
    log = folder / f"{name}.log"
    with log.open("w") as file:
        process = subprocess.Popen(
            [program(name), *map(str, words)], stdout=file, stderr=file, stdin=subprocess.DEVNULL, cwd=folder
        )
    try:
        ports: list[int] = []
        wait(lambda: _answers(process, log, ports), f"{name} to answer", log)
        yield Server(ports[0], log)
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(process: subprocess.Popen[bytes], log: Path, ports: list[int]) -> bool:
    """Its port is read once and kept: for a moment in which it closes a file, it cannot be read."""
    assert process.poll() is None, log.read_text()[-3000:]
    if not ports and (port := listening_port(process.pid)):
        ports.append(port)
    if not ports:
        return False
    connection = http.client.HTTPConnection("127.0.0.1", ports[0], timeout=60)
    try:
        connection.request("GET", "/-/ready")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


@contextmanager
def prometheus(config: Path, folder: Path, *more: str) -> Iterator[Server]:
    words = (
        f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}", "--web.listen-address=127.0.0.1:0", *more,
    )  # fmt: skip
    with _running("prometheus", words, folder) as server:
        yield server


@contextmanager
def alertmanager(config: Path, folder: Path) -> Iterator[Server]:
    words = (
        f"--config.file={config}", f"--storage.path={folder / 'alertmanager'}", "--web.listen-address=127.0.0.1:0",
        "--cluster.listen-address=",
    )  # fmt: skip
    with _running("prometheus-alertmanager", words, folder) as server:
        yield server


@dataclass(slots=True)
class Webhook:
    """A receiver of Alertmanager's messages: `messages` are pairs of path and document."""

    port: int = 0
    messages: list[tuple[str, Json]] = field(default_factory=list)

    def alerts(self, name: str, **labels: str) -> list[Json]:
        """The alerts of this name, with these labels, that were notified as firing so far, with the path in `signalled_at`."""
        return [
            alert | {"signalled_at": path}
            for path, message in list(self.messages)
            for alert in message["alerts"]
            if alert["status"] == "firing" and {"alertname": name, **labels}.items() <= alert["labels"].items()
        ]

    def wait_alert(self, name: str, **labels: str) -> Json:
        wait(lambda: self.alerts(name, **labels), f"{name} {labels}; notified so far: {self.names()}")
        return self.alerts(name, **labels)[0]

    def names(self) -> set[str]:
        return {alert["labels"]["alertname"] for _, message in list(self.messages) for alert in message["alerts"]}


@contextmanager
def webhook() -> Iterator[Webhook]:
    got = Webhook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.messages.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the library's
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    got.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield got
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
