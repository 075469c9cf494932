"""The next start of the daemon knows what the last one committed, if it is the same machine."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpuwarden.health.model import EventKind
from gpuwarden.ledger.ledger import Ledger
from gpuwarden.ledger.reader import read_only
from gpuwarden_collectors.base import host_clock
from gpuwarden_collectors.event_facts import LogPosition
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.host import MachineIdentity
from support.ledgers import HERE, PATIENCE, Ledgers, check_in_order, event, later, numbers, opened


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Ledgers]:
    ledgers = Ledgers(tmp_path / "state/ledger.db")
    yield ledgers
    await ledgers.close()


# --- The ordinary course -------------------------------------------------------------------------------------------


async def test_the_next_start_remembers(make: Ledgers) -> None:
    first = make()
    memory = await opened(first)
    assert memory.begun
    assert memory.events == ()
    first.append([event(1), event(2)], position=LogPosition("b1", 17))
    assert await first.close(PATIENCE)
    memory = await opened(make())
    assert numbers(memory) == [1, 2]
    assert memory.position == LogPosition("b1", 17)
    assert not memory.begun


@pytest.mark.parametrize(("uptime", "kept"), [(60.0, True), (4_000.0, False)])
async def test_old_events_go_only_once_the_clock_had_an_hour_to_be_set_after_a_boot(
    tmp_path: Path, uptime: float, kept: bool
) -> None:
    path = tmp_path / "ledger.db"
    ledger = Ledger(path, machine=HERE, boot_id="b1")
    await opened(ledger)
    ledger.append([event(1)], checkpoint=[])
    assert await ledger.close(PATIENCE)
    in_2099 = Stamp(uptime, 4_080_000_000.0)
    ledger = Ledger(path, machine=HERE, boot_id="b2", clock=lambda: in_2099)
    await opened(ledger)
    assert await ledger.close(PATIENCE)
    with read_only(path) as reader:
        assert [each.event.data["n"] for each in reader.events()] == ([1] if kept else [])


async def test_a_checkpoint_is_due_after_many_events_and_once_a_day(make: Ledgers) -> None:
    ledger = make()
    await opened(ledger)
    assert not ledger.checkpoint_due(later())
    ledger.append([event(1)])
    day = Stamp(host_clock().boottime + 86_400, 0)
    assert ledger.checkpoint_due(day)
    assert not ledger.checkpoint_due(later())
    ledger.append(event(number) for number in range(1_000))
    assert ledger.checkpoint_due(later())
    ledger.append(checkpoint=[event(5)])
    assert not ledger.checkpoint_due(later())
    assert await ledger.close(PATIENCE)
    assert numbers(await opened(make())) == [5]


# --- Machines ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "same"),
    [
        (HERE, True),
        (MachineIdentity(dmi=HERE.dmi, machine_id="b" * 32), True),
        (MachineIdentity(machine_id=HERE.machine_id), True),
        (MachineIdentity(dmi=HERE.dmi, machine_id=HERE.machine_id, instance="i-1"), True),
        (MachineIdentity(), True),
        (MachineIdentity(dmi="4c4c4544-0000-0000-0000-000000000002", machine_id=HERE.machine_id), False),
        (MachineIdentity(machine_id="b" * 32), False),
    ],
    ids=["same", "reinstalled", "DMI unreadable", "instance known now", "nothing known", "cloned image", "other disk"],
)
async def test_a_ledger_of_another_machine_is_set_aside(make: Ledgers, now: MachineIdentity, *, same: bool) -> None:
    first = make()
    await opened(first)
    first.append([event(1)])
    assert await first.close(PATIENCE)
    memory = await opened(make(machine=now))
    assert numbers(memory) == ([1] if same else [])
    assert memory.begun is not same
    assert [event.kind for event in memory.events] == [EventKind.XID if same else EventKind.MACHINE_CHANGED]


async def test_a_name_that_could_not_be_read_once_is_not_forgotten(make: Ledgers) -> None:
    clone = MachineIdentity(dmi="4c4c4544-0000-0000-0000-000000000002", machine_id=HERE.machine_id)
    for machine, begun in ((HERE, True), (MachineIdentity(machine_id=HERE.machine_id), False), (clone, True)):
        ledger = make(machine=machine)
        assert (await opened(ledger)).begun is begun
        assert await ledger.close(PATIENCE)


# --- kill -9 -------------------------------------------------------------------------------------------------------

WRITER = """
import asyncio, pathlib, sys
from support.ledgers import *

async def main():
    ledger = Ledger(pathlib.Path(sys.argv[1]), machine=HERE, boot_id="b1")
    memory = await opened(ledger)
    position = memory.position.sequence if memory.position else 0
    while True:
        for _ in range(5):
            position += 1
            ledger.append([event(position)], position=LogPosition("b1", position))
        if ledger.checkpoint_due(host_clock()):
            ledger.append(checkpoint=[event(0)])
        assert await ledger.flush(60)
        print(position, flush=True)

asyncio.run(main())
"""


@pytest.mark.slow
def test_killed_at_any_point_nothing_committed_is_lost_and_nothing_is_there_twice(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    chance = random.Random(9)
    command: list[str] = [sys.executable, "-c", WRITER, str(path)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for _ in range(12):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as writer:
            assert writer.stdout is not None
            acknowledged = [writer.stdout.readline() for _ in range(chance.randrange(1, 60))]
            time.sleep(chance.random() * 0.003)
            writer.kill()
            acknowledged += writer.stdout.readlines()
        check_in_order(path)
        with read_only(path) as reader:
            position = reader.position()
        assert position is not None
        assert position.sequence >= int(acknowledged[-1])
    database = sqlite3.connect(path)
    assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    database.close()
