"""A control socket with prepared answers, and what was asked of it."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Answer = Callable[[dict[str, Any]], bytes]


def result(value: Any) -> bytes:
    return json.dumps({"ok": True, "result": value}).encode() + b"\n"


def refusal(error: str, code: int) -> bytes:
    return json.dumps({"ok": False, "error": error, "code": code}).encode() + b"\n"


@contextlib.contextmanager
def serving(run_dir: Path, answer: Answer | None) -> Iterator[list[dict[str, Any]]]:
    """Requests as they come in. With `answer` None they are taken and never answered."""
    run_dir.mkdir(parents=True, exist_ok=True)
    asked: list[dict[str, Any]] = []
    stopped = threading.Event()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(run_dir / "control.sock"))
        listener.listen()
        listener.settimeout(0.05)
        thread = threading.Thread(target=_serve, args=(listener, answer, asked, stopped))
        thread.start()
        try:
            yield asked
        finally:
            stopped.set()
            thread.join()
            (run_dir / "control.sock").unlink()


def _serve(
    listener: socket.socket, answer: Answer | None, asked: list[dict[str, Any]], stopped: threading.Event
) -> None:
    with contextlib.ExitStack() as left_open:
        while not stopped.is_set():
            try:
                talk, _ = listener.accept()
            except TimeoutError:
                continue
            talk.settimeout(60)
            left_open.enter_context(talk)
            with contextlib.suppress(OSError), talk.makefile("rb") as lines:
                if not (line := lines.readline()):
                    continue  # somebody only checked whether anyone listens
                asked.append(json.loads(line))
                if answer is not None:
                    talk.sendall(answer(asked[-1]))
                    talk.close()
