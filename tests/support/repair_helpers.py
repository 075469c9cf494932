"""Root's helper of repairs as a stub: a thread that answers at a socket as a test says."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

ABLE: Mapping[str, Any] = {"able": ["restart_service", "reset_gpu", "reload_driver", "reboot"], "unable": {}}
Answer = Mapping[str, Any] | None


class StubHelper:
    """`on_step`: what is done for a step, and answered; None: the connection stays open. `results`: the answer to who asks for the result."""

    def __init__(self, path: Path, on_step: Callable[[Mapping[str, Any]], Answer]) -> None:
        self.on_step = on_step
        self.results: Mapping[str, Any] = {"state": "unknown"}
        self.steps: list[Mapping[str, Any]] = []
        self.asked_again = threading.Event()
        self._open: list[socket.socket] = []
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                with suppress(OSError, ValueError):
                    self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as lines:
            asked = json.loads(lines.readline())
        answer: Answer = ABLE
        if asked["verb"] == "result":
            answer = self.results
            self.asked_again.set()
        elif asked["verb"] == "step":
            self.steps.append(asked)
            answer = self.on_step(asked)
        if answer is None:
            self._open.append(connection)
            return
        with connection:
            connection.sendall(json.dumps(answer).encode() + b"\n")

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(60)
        for connection in self._open:
            connection.close()
