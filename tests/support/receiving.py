"""A real HTTP server that is notified: it keeps what it was sent, and responds as it is set to."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Request:
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass
class Receiving:
    """`answer`: the status of every answer; `answers`: of the next ones, before that. `more`: headers of them. `fails_on`: a body that it
    answers with 500.
    """

    answer: int = 200
    answers: list[int] = field(default_factory=list)
    more: dict[str, str] = field(default_factory=dict)
    fails_on: bytes | None = None
    requests: list[Request] = field(default_factory=list)
    connections: int = 0

    def __enter__(self) -> Self:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self) -> None:
                outer.connections += 1
                super().setup()

            def do_POST(self) -> None:
                body = self.rfile.read(length := int(self.headers["Content-Length"]))
                if len(body) < length:  # its sender was killed
                    return
                outer.requests.append(Request(self.path, dict(self.headers.items()), body))
                answer = outer.answers.pop(0) if outer.answers else outer.answer
                self.send_response(500 if body == outer.fails_on else answer)
                for name, value in outer.more.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?team=gpu"

    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(request.body) for request in list(self.requests)]
