"""Traces for tests: stories of a node, written and read."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from evaluate.classes import CLASSES
from evaluate.node import Node
from gpuwarden.replay.replay import Replay
from gpuwarden.trace.reader import TraceReader
from gpuwarden.trace.records import Record
from gpuwarden.trace.writer import TraceWriter

Names = Any
STRUCK_AFTER = 60.0
"""Seconds of health in a story."""


def story(fault: str, seconds: float = 120.0, *, gpus: int = 4) -> list[Record]:
    """A minute of health, then `fault` (a name of CLASSES) for `seconds`."""
    records: list[Record] = []
    node = Node(records.append, Random(fault), gpus=gpus)
    node.start_daemon(remembers=False)
    node.run(STRUCK_AFTER)
    node.go(next(row for row in CLASSES if row.name == fault).strike(node, 1))
    node.run(seconds)
    return records


def write(path: Path, records: Iterable[Record], *, names: Names = None) -> Path:
    with gzip.open(path, "wb") as file:
        trace = TraceWriter(file, version="1.2.3", names=names)
        for record in records:
            trace.write(record)
    return path


def read(path: Path) -> list[Record]:
    with TraceReader(path) as trace:
        return list(trace)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def so_far(path: Path) -> str:
    """Return the lines of a recording that goes on as far as it was written; empty without the file."""
    text = b""
    with suppress(FileNotFoundError, EOFError), path.open("rb") as raw, gzip.GzipFile(fileobj=raw) as file:
        while piece := file.read1():
            text += piece
    return text.decode()


def write_lines(path: Path, *contents: object) -> Path:
    """Write lines without gzip. Text and bytes are written as they are."""
    raw = [c if isinstance(c, bytes) else (c if isinstance(c, str) else json.dumps(c)).encode() for c in contents]
    path.write_bytes(b"".join(line + b"\n" for line in raw))
    return path


def reported(records: Iterable[Record], replay: Replay | None = None) -> list[tuple[float, str, str]]:
    """The judge's events for them: uptime, kind, subject."""
    replay = replay or Replay()
    events = (event for record in records for step in replay.take(record) for event in step.events)
    return [(round(event.at.boottime, 3), event.kind, str(event.key)) for event in events]
