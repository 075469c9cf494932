"""Ledgers for tests: as the daemon opens them, and what they remember."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from gpuwarden.health.model import NODE, Event, EventKind, Key
from gpuwarden.ledger.ledger import Ledger
from gpuwarden.ledger.reader import read_only
from gpuwarden.ledger.rows import Memory
from gpuwarden_collectors.base import host_clock
from gpuwarden_collectors.event_facts import LogPosition
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.host import MachineIdentity

HERE = MachineIdentity(dmi="4c4c4544-0000-0000-0000-000000000001", machine_id="a" * 32)
PATIENCE = 60.0  # seconds after which a test gives up


def event(number: int, text: str = "") -> Event:
    return Event(
        kind=EventKind.XID, at=host_clock(), boot_id="b1", key=Key("xid", NODE, "79"), data={"n": number, "text": text}
    )


def later() -> Stamp:
    """A minute from now: by then a write that hangs counts as stalled."""
    now = host_clock()
    return Stamp(now.boottime + 60, now.wall + 60)


def numbers(memory: Memory | None) -> list[object]:
    assert memory is not None
    return [event.data["n"] for event in memory.events if event.kind == EventKind.XID]


async def opened(ledger: Ledger) -> Memory:
    memory = await ledger.open(PATIENCE)
    assert memory is not None, ledger.error(later())
    return memory


async def recalled(ledger: Ledger) -> Memory:
    """Return the contents of the ledger as soon as it could be opened."""
    async with asyncio.timeout(PATIENCE):
        while (memory := ledger.recall()) is None:
            await ledger.flush(0.1)
    return memory


class Ledgers:
    """Makes ledgers and closes them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.made: list[Ledger] = []

    def __call__(self, path: Path | None = None, machine: MachineIdentity = HERE, capacity: int = 10_000) -> Ledger:
        self.made.append(Ledger(path or self.path, machine=machine, boot_id="b1", capacity=capacity))
        return self.made[-1]

    async def close(self) -> None:
        for ledger in self.made:
            await ledger.close(1)


def check_in_order(path: Path) -> None:
    """Events 1, 2, 3 … are all there, once, and the position is that of the last."""
    with read_only(path) as reader:
        seen = [each.event.data["n"] for each in reader.events(limit=1_000_000)]
        assert reader.position() == LogPosition("b1", len(seen))
    assert seen == list(range(1, len(seen) + 1))


async def fill_until_it_fails(ledger: Ledger, make_room: Callable[[], object]) -> None:
    """Writes until the disk takes no more, makes room, and finds everything written in order."""
    number = 0
    async with asyncio.timeout(PATIENCE):
        while True:
            number += 1
            ledger.append([event(number, "x" * 1_000)], position=LogPosition("b1", number))
            if not await ledger.flush(PATIENCE):
                break
    error = ledger.error(host_clock())
    assert "cannot use ledger" in error
    assert "full" in error or "I/O" in error or "room" in error, error
    make_room()
    assert await ledger.flush(PATIENCE), ledger.error(host_clock())
    assert ledger.error(host_clock()) == ""
    assert await ledger.close(PATIENCE)
