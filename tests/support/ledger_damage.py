"""Random damage to the files of a ledger, each reproducible from its number."""

from __future__ import annotations

import random
import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

from gpuwarden.health.model import Event, EventKind, Json, Key, gpu
from gpuwarden.health.state import State, fold
from gpuwarden.ledger.ledger import Ledger
from gpuwarden.ledger.rows import Memory
from gpuwarden.ledger.seal import SUFFIX
from gpuwarden.policy import state as policy
from gpuwarden.policy.fold import fold as fold_policy
from gpuwarden_collectors.event_facts import LogPosition
from gpuwarden_collectors.facts import Stamp
from support.hosts import slot
from support.ledgers import HERE, PATIENCE

FILES = ("", "-wal")


def latched(number: int = 1) -> Event:
    key = Key("xid", gpu(slot(number)), "95")
    data: dict[str, Json] = {
        "severity": "failure",
        "advice": "reset_gpu",
        "latch": "reset",
        "text": "uncontained",
        "xid": 95,
    }
    return Event(kind=EventKind.RAISED, at=Stamp(100.0, 1_800_000_000.0), boot_id="b1", key=key, data=data)


def history() -> list[Event]:
    """A daemon's day: a latched failure between much that is none."""
    key = Key("xid", gpu(slot(0)), "13")
    lines = [
        Event(kind=EventKind.XID, at=Stamp(float(n), 1_800_000_000.0 + n), boot_id="b1", key=key, data={"count": 1, "n": n})
        for n in range(60)
    ]  # fmt: skip
    boot = Event(kind=EventKind.BOOT, at=Stamp(0.0, 1_799_999_990.0), boot_id="b1")
    return [boot, *lines[:30], latched(), *lines[30:]]


async def written(folder: Path, *, running: bool) -> None:
    """The files that a daemon left that was stopped, or with `running` one that was killed a moment after its last line."""
    path = folder / "source/ledger.db"
    ledger = Ledger(path, machine=HERE, boot_id="b1")
    assert await ledger.open(PATIENCE) is not None
    ledger.append(history(), position=LogPosition("b1", 7))
    assert await ledger.flush(PATIENCE)
    ledger.append([history()[1]])
    assert await ledger.flush(PATIENCE)
    if not running:
        assert await ledger.close(PATIENCE)
    (folder / "kept").mkdir()
    for side in (*FILES, SUFFIX):
        source = path.with_name(path.name + side)
        if source.exists():
            shutil.copy(source, folder / "kept" / source.name)
    await ledger.close(PATIENCE)


def damage(folder: Path, number: int) -> str:
    """Ruin one of the files, in the way that `number` draws; what was done."""
    chance = random.Random(number)
    files = [folder / f"ledger.db{side}" for side in FILES]
    file = chance.choice([file for file in files if file.exists() and file.stat().st_size])
    data = bytearray(file.read_bytes())
    at, kind = chance.randrange(len(data)), chance.choice(("bit", "byte", "block", "schema", "cut"))
    match kind:
        case "bit":
            data[at] ^= 1 << chance.randrange(8)
        case "byte":
            data[at] = chance.randrange(256)
        case "block":
            data[at : at + 512] = chance.randbytes(len(data[at : at + 512]))
        case "schema":
            at %= min(4096, len(data))
            data[at] ^= 0x80
        case "cut":
            del data[at:]
    file.write_bytes(data)
    return f"{kind} at {at} of {file.name}"


@dataclass(frozen=True, slots=True)
class Reopened:
    """`memory` None: it could not be opened. `error`: the daemon's report of it."""

    memory: Memory | None
    error: str

    @property
    def state(self) -> State:
        assert self.memory is not None
        reduce(fold_policy, self.memory.events, policy.PolicyState())
        return reduce(fold, self.memory.events, State())


async def reopened(folder: Path) -> Reopened:
    ledger = Ledger(folder / "ledger.db", machine=HERE, boot_id="b1")
    try:
        memory = await ledger.open(PATIENCE)
        now = Stamp(1e6, 1.8e9)
        return Reopened(
            memory, ledger.error(now) or ledger._ledger_writer.error or str(ledger._ledger_writer.damage or "")
        )
    finally:
        await ledger.close(PATIENCE)


def spoilt(folder: Path, number: int) -> tuple[Path, str]:
    """A copy of the kept files with damage `number`."""
    copy = folder / f"damage-{number}"
    shutil.copytree(folder / "kept", copy)
    return copy, damage(copy, number)


def set_meta(path: Path, key: str, value: str) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE meta SET value = ? WHERE key = ?", (value, key))
