"""A kernel log under test: lines to write, and what its reader reported."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gpuwarden_collectors.event_facts import HostEvent, LogGap, LogPosition, XidEvent
from gpuwarden_collectors.kernel_log.reader import KernelLog

BOOT = "b007"


def line(sequence: int, *, xid: int = 79, seconds: float = 10.0, text: str = "x") -> str:
    return f"4,{sequence},{int(seconds * 1e6)},-;NVRM: Xid (PCI:0000:4e:00): {xid}, {text}\n"


class Received:
    """What a KernelLog reported, and a way to wait for it."""

    def __init__(self) -> None:
        self.events: list[HostEvent] = []
        self.positions: list[LogPosition] = []
        self.batches = 0

    def __call__(self, events: Sequence[HostEvent], position: LogPosition) -> None:
        self.events += events
        self.positions.append(position)
        self.batches += 1

    def sequences(self) -> list[int]:
        return [e.origin.sequence for e in self.events if isinstance(e, XidEvent) and e.origin]

    def gaps(self) -> list[int]:
        return [e.lost for e in self.events if isinstance(e, LogGap)]


@asynccontextmanager
async def following(path: Path, boot_id: str = BOOT, **options: Any) -> AsyncIterator[tuple[KernelLog, Received]]:
    received = Received()
    log = KernelLog(str(path), boot_id, received, **options)
    log.start()
    try:
        yield log, received
    finally:
        log.close()
