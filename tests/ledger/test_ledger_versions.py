"""Upgrade and downgrade: within a major version nothing is forgotten; another major version ends the start, and nothing is moved."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from functools import reduce
from pathlib import Path

import pytest

from gpuwarden.health import checkpoint as health_checkpoint
from gpuwarden.health import state as health
from gpuwarden.health.model import Event, EventKind, Key, Subject, gpu
from gpuwarden.ledger.rows import Memory
from gpuwarden.ledger.store import Store
from gpuwarden.ledger.unknown_events import MOST, unknown_events
from gpuwarden.policy import checkpoint as policy_checkpoint
from gpuwarden.policy import state as policy
from gpuwarden.policy.fold import fold as fold_policy
from gpuwarden_collectors.base import host_clock
from gpuwarden_collectors.event_facts import LogPosition
from gpuwarden_collectors.facts import Stamp
from support.commands import gpuwarden
from support.ledgers import PATIENCE, Ledgers, opened

FIRST = Path(__file__).parents[1] / "data/ledger/1.0.sql"
"""A ledger as version 1.0 wrote it: a pin, an Xid that was acknowledged, one that is latched, an exclusion in Slurm."""
SLOT = "0000:1b:00.0"
LATCHED, ACKNOWLEDGED = Key("xid", gpu(SLOT), "79"), Key("xid", gpu(SLOT), "31")

NEWER = FIRST.with_name("newer.sql").read_text()
"""What a later 1.x may have added to it: columns, a table, an index, a key, kinds, codes, subjects, values and data."""


def begun(path: Path, *more: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as database:
        for script in (FIRST.read_text(), *more):
            database.executescript(script)
    return path


def rows(path: Path, asked: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute(asked).fetchall()


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Ledgers]:
    ledgers = Ledgers(tmp_path / "state/ledger.db")
    yield ledgers
    await ledgers.close()


def folded(memory: Memory) -> tuple[health.State, policy.PolicyState]:
    return reduce(health.fold, memory.events, health.State()), reduce(fold_policy, memory.events, policy.PolicyState())


def check_nothing_is_forgotten(memory: Memory) -> None:
    judged, decided = folded(memory)
    assert judged.tracks[LATCHED].latched
    assert judged.pins[SLOT].uuid == "GPU-1"
    assert judged.records[ACKNOWLEDGED].acknowledged == Stamp(5.0, 1790000005.0)
    assert decided.holds["slurm"].reason == "gpuwarden: xid 79"
    assert memory.position == LogPosition("b1", 12)


async def go_on(make: Ledgers) -> Memory:
    """Open the ledger, write an event and a checkpoint as a daemon does, and return the memory of the next start."""
    ledger = make()
    memory = await opened(ledger)
    check_nothing_is_forgotten(memory)
    judged, decided = folded(memory)
    now = host_clock()
    covered = [*health_checkpoint.checkpoint(judged, now), *policy_checkpoint.checkpoint(decided, now)]
    ledger.append([Event(kind=EventKind.STARTED, at=now, boot_id="b1")], checkpoint=covered)
    assert await ledger.close(PATIENCE)
    ledger = make()
    memory = await opened(ledger)
    assert await ledger.close(PATIENCE)
    return memory


async def test_what_the_first_version_wrote_is_remembered_by_this_one(make: Ledgers) -> None:
    begun(make.path)
    check_nothing_is_forgotten(await go_on(make))


def test_since_the_first_version_the_tables_have_only_been_added_to(tmp_path: Path) -> None:
    """An older gpuwarden names the columns that it knows, in what it reads and in what it writes."""
    Store.open(tmp_path / "now.db", now=0.0).close()
    then, now = (
        {
            table: {row[1]: row[1:] for row in rows(path, f"PRAGMA table_info({table})")}
            for (table,) in rows(path, "SELECT name FROM sqlite_schema WHERE type = 'table'")
        }
        for path in (begun(tmp_path / "then.db"), tmp_path / "now.db")
    )
    for table, columns in then.items():
        assert columns.items() <= now[table].items()
        added = [now[table][name] for name in now[table].keys() - columns.keys()]
        assert all(default is not None or not required for _, _, required, default, _ in added)


async def test_what_a_newer_minor_version_wrote_costs_no_latch_no_pin_and_no_acknowledgement(make: Ledgers) -> None:
    begun(make.path, NEWER)
    check_nothing_is_forgotten(await go_on(make))
    assert rows(make.path, "SELECT value FROM meta WHERE key = 'schema'") == [("1.9",)]
    assert rows(make.path, "SELECT seen_by FROM events WHERE kind = 'started'") == [("nobody",)]


async def test_after_a_downgrade_the_newer_version_finds_again_what_only_it_understands(make: Ledgers) -> None:
    begun(make.path, NEWER)
    memory = await go_on(make)
    melted = Key("gpu_melted", gpu(SLOT))
    kept = [(event.kind, event.key) for event in unknown_events(memory.events)]
    assert kept == [("foretold", Key("gpu", gpu(SLOT))), ("raised", melted), ("latched", melted)]
    again = await go_on(make)
    assert unknown_events(again.events) == unknown_events(memory.events)


def test_what_nobody_understands_is_bounded() -> None:
    many = (
        Event(kind="foretold", at=Stamp(n, n), boot_id="b1", key=Key("x", Subject("node"))) for n in range(3 * MOST)
    )
    assert [event.at.wall for event in unknown_events(many)] == list(range(2 * MOST, 3 * MOST))


@pytest.mark.parametrize(("version", "which"), [("2.0", "newer"), ("0.7", "older")])
def test_on_the_ledger_of_another_major_version_nothing_starts_and_nothing_is_moved(
    tmp_path: Path, version: str, which: str
) -> None:
    path = begun(tmp_path / "state/ledger.db", f"UPDATE meta SET value = '{version}' WHERE key = 'schema'")
    before = path.read_bytes()
    ran = gpuwarden(
        *(
            "run",
            "--simulate",
            "1",
            "--state-dir",
            path.parent,
            "--run-dir",
            tmp_path / "run",
            "--listen",
            "127.0.0.1:0",
        ),
        temporary=tmp_path,
    )
    assert ran.returncode == 64, ran.stderr
    assert f"has version {version}" in ran.stderr
    assert f"install the {which} gpuwarden again" in ran.stderr
    assert [file.name for file in path.parent.iterdir()] == ["ledger.db"]
    assert path.read_bytes() == before
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_exclusions_are_listed_from_the_ledger_without_a_daemon(tmp_path: Path) -> None:
    def asked(*more: str) -> tuple[int, str]:
        done = gpuwarden("exclusions", "--state-dir", tmp_path, *more, temporary=tmp_path)
        return done.returncode, done.stdout + done.stderr

    assert asked()[0] == 69
    path = begun(tmp_path / "ledger.db")
    assert asked() == (1, "slurm: in force since 2026-09-21 14:13:30 UTC, for failure: gpuwarden: xid 79\n")
    code, text = asked("--json")
    assert (code, [row["actuator"] for row in json.loads(text)["exclusions"]]) == (1, ["slurm"])
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("DELETE FROM events WHERE kind IN ('outcome', 'excluded')")
    assert asked() == (
        1,
        "slurm: may be in force, requested 2026-09-21 14:13:29 UTC, for failure: gpuwarden: xid 79\n",
    )
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE events SET data = replace(data, '}', ',\"observed\":true}') WHERE kind = 'intended'")
    assert asked() == (0, "gpuwarden excludes this node nowhere\n")
