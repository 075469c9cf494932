"""A real HTTP server that answers as Prometheus would, or as nobody should."""

from __future__ import annotations

import json
import ssl
import threading
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Any

from support.daemons import PATIENCE
from support.serving import serving

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """`code` 0: no HTTP, only what `pieces` hold. An endless answer ends when the client has gone."""

    code: int
    pieces: Iterable[bytes]
    headers: dict[str, str]
    pause: float = 0.0


Respond = Callable[[str, str, dict[str, str]], Answer]
"""From the path, the query and the headers, their names in lower case."""


def plain(code: int, body: bytes, **headers: str) -> Answer:
    return Answer(code, (body,), {"Content-Length": str(len(body)), **headers})


def vector(result: Sequence[Json], warnings: Sequence[str] = ()) -> Answer:
    data = {"resultType": "vector", "result": list(result)}
    more = {"warnings": list(warnings)} if warnings else {}
    return plain(200, json.dumps({"status": "success", "data": data, **more}).encode())


def series(at: float, value: float | str, labels: dict[str, str]) -> Json:
    return {"metric": labels, "value": [at, str(value)]}


class endless:  # noqa: N801 - reads as what it is
    """A mebibyte of blanks, again and again."""

    def __iter__(self) -> Iterator[bytes]:
        while True:
            yield b" " * (1 << 20)


class _Drops:
    """`first`, then a byte at a time."""

    def __init__(self, first: bytes) -> None:
        self._first = first

    def __iter__(self) -> Iterator[bytes]:
        yield self._first
        while True:
            yield b"X" if self._first else b""


def drip(first: bytes) -> Answer:
    """Answer with `first`, then drop by drop. Without `first` no byte is sent at all."""
    return Answer(0, _Drops(first), {}, pause=0.05)


@contextmanager
def api_server(respond: Respond, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """Serve the API by `respond`, and yield the port on loopback."""
    stopped = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        timeout = PATIENCE

        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            asked = urllib.parse.parse_qs(query)["query"][0]
            answer = respond(path, asked, {name.lower(): value for name, value in self.headers.items()})
            self.close_connection = True
            with suppress(OSError):
                if answer.code:
                    self.send_response(answer.code)
                    for name, value in answer.headers.items():
                        self.send_header(name, value)
                    self.end_headers()
                for piece in answer.pieces:
                    if stopped.wait(answer.pause):
                        return
                    self.wfile.write(piece)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the library's
            pass

    with serving(Handler, tls) as port:
        try:
            yield port
        finally:
            stopped.set()
