"""Records through the running daemon, polled once a second for new readings, so that GPUs are not read twice."""

from __future__ import annotations

import gzip
import json
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from gpuwarden.cli.client import Daemon
from gpuwarden.cli.parser import CommandError
from gpuwarden.trace.pseudonyms import Pseudonyms
from gpuwarden.trace.recorder import new_trace

POLLED_EVERY = 1.0

Piece = dict[str, Any]


class RecordingEnded(Exception):  # noqa: N818 - what is in the trace can be replayed
    """The daemon ended the recording. The message has the reason."""


def record_through(
    daemon: Daemon, first: Piece, path: Path, seconds: float | None, *, hosts: Iterable[str] | None
) -> None:
    """Write the records after `first`, the answer that started the session. `hosts`: names to anonymise, too.

    Raises OSError if the file cannot be written, CommandError if the daemon no longer responds, RecordingEnded. In all
    cases the session is closed, and the written part can be replayed.
    """
    file, zipped = new_trace(path)
    names = None if hosts is None else Pseudonyms(hosts)
    with _stopped_by_signals() as stop, file, zipped:
        try:
            for piece in _pieces(daemon, first, seconds, stop):
                _write(zipped, piece, names)
        except BaseException:
            with suppress(CommandError):
                daemon.call("record", session=first["session"], end=True)
            raise


@contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    stop = threading.Event()

    def set_it(_: int, __: FrameType | None) -> None:
        stop.set()

    old = {number: signal.signal(number, set_it) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _pieces(daemon: Daemon, first: Piece, seconds: float | None, stop: threading.Event) -> Iterator[Piece]:
    session, piece = first["session"], first
    until = None if seconds is None else time.monotonic() + seconds
    while True:
        yield piece
        if piece["error"]:
            raise RecordingEnded(str(piece["error"]))
        left = POLLED_EVERY if until is None else min(POLLED_EVERY, until - time.monotonic())
        if not piece["more"] and stop.wait(max(0.0, left)):
            break
        if stop.is_set() or (until is not None and time.monotonic() >= until):
            break
        piece = daemon.call("record", session=session)
    piece = daemon.call("record", session=session, end=True)
    yield piece
    while piece["more"]:
        piece = daemon.call("record", session=session, end=True)
        yield piece


def _write(zipped: gzip.GzipFile, piece: Piece, names: Pseudonyms | None) -> None:
    lines = str(piece["trace"])
    if names is not None:
        lines = "".join(f"{json.dumps(_renamed(line, names), separators=(',', ':'))}\n" for line in lines.splitlines())
    zipped.write(lines.encode())
    zipped.flush()


def _renamed(line: str, names: Pseudonyms) -> Any:
    content = names(json.loads(line))
    return content | {"anonymised": True} if "trace" in content else content
