"""Whatever becomes of the disk or the file, the daemon goes on, reports it, and loses nothing that it can keep."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from gpuwarden.health.model import EventKind
from gpuwarden.ledger.errors import LedgerCorrupt, LedgerUnavailable, check_verdict
from gpuwarden.ledger.ledger import Ledger
from gpuwarden.ledger.seal import SUFFIX
from gpuwarden.ledger.store import Entry, Store
from gpuwarden_collectors.base import host_clock
from gpuwarden_collectors.event_facts import LogPosition
from gpuwarden_collectors.facts import Stamp
from support.ledgers import (
    PATIENCE,
    Ledgers,
    check_in_order,
    event,
    fill_until_it_fails,
    later,
    numbers,
    opened,
    recalled,
)
from support.mounts import ext4, frozen, remount, tmpfs


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Ledgers]:
    ledgers = Ledgers(tmp_path / "state/ledger.db")
    yield ledgers
    await ledgers.close()


# --- Pages that cannot be read -------------------------------------------------------------------------------------


def let_reads_fail(path: Path) -> None:
    """Let every read of the file by this process fail with another error than EIO, as of a server that is away."""
    written = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if int(descriptor.name) != written and descriptor.readlink() == path:
                os.dup2(written, int(descriptor.name), inheritable=False)
    os.close(written)


@pytest.mark.slow
async def test_a_page_that_the_disk_does_not_give_is_an_error_of_the_disk_and_no_damage(
    make: Ledgers, tmp_path: Path
) -> None:
    path = tmp_path / "ledger.db"
    ledger = make(path)
    await opened(ledger)
    ledger.append(event(number, "x" * 1_000) for number in range(2_000))  # more than SQLite's cache
    ledger.append([replace(event(2_000), kind=EventKind.EXCLUDED)])  # sealed in a second, for which all is read
    assert await ledger.flush(PATIENCE)
    let_reads_fail(path)
    async with asyncio.timeout(PATIENCE):
        while not ledger.error(host_clock()):
            await asyncio.sleep(0.01)
            await ledger.flush(PATIENCE)  # to its end: another attempt that waits would open it again at once
    assert "the disk gave an I/O error" in ledger.error(host_clock())
    assert await ledger.flush(PATIENCE), "it is opened again"
    assert ledger.error(host_clock()) == ""
    assert await ledger.close(PATIENCE)
    assert moved_aside(path) == []
    memory = await opened(make(path))
    assert numbers(memory) == list(range(2_000))
    assert memory.events[-1].kind == EventKind.EXCLUDED


def test_an_error_of_the_disk_in_the_check_at_the_start_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with Store.open(path, now=0.0) as store:
        store.append([Entry(events=tuple(event(number, "x" * 1_000) for number in range(100)))])
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        assert db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        let_reads_fail(path)
        (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
    with pytest.raises(LedgerUnavailable, match="the disk gave an I/O error"):
        check_verdict(verdict, path)
    for damage in ("row 3 missing from index events", "Page 5: unable to get the page. error code=522"):
        with pytest.raises(LedgerCorrupt):
            check_verdict(damage, path)


# --- Corrupt files -------------------------------------------------------------------------------------------------


def ruin_header(path: Path) -> None:
    path.write_bytes(b"\x00garbage" + path.read_bytes()[8:])


def ruin_middle(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + b"\xa5" * (len(data) // 4) + data[3 * len(data) // 4 :])


def cut_in_half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def replace_by_text(path: Path) -> None:
    path.write_text("not a database at all\n" * 100)


async def filled(make: Ledgers, path: Path) -> Ledger:
    ledger = make(path)
    await opened(ledger)
    ledger.append(event(number, "x" * 500) for number in range(200))
    assert await ledger.flush(PATIENCE)
    return ledger


def moved_aside(path: Path) -> list[Path]:
    return sorted(file for file in path.parent.glob("ledger.db.corrupt-*") if file.name.endswith("Z"))


@pytest.mark.parametrize("ruin", [ruin_header, ruin_middle, cut_in_half, replace_by_text])
async def test_a_corrupt_ledger_is_moved_aside_and_another_begun(
    make: Ledgers, tmp_path: Path, ruin: Callable[[Path], None]
) -> None:
    path = tmp_path / "ledger.db"
    assert await (await filled(make, path)).close(PATIENCE)
    ruin(path)
    ruined = path.read_bytes()
    ledger = make(path)
    memory = await opened(ledger)
    (aside,) = moved_aside(path)
    assert aside.read_bytes() == ruined
    assert memory.begun
    (moved,) = memory.events
    assert moved.kind == EventKind.LEDGER_MOVED
    assert moved.data["moved_to"] == aside.name
    assert aside.name in ledger.error(later())
    assert ledger.error(Stamp(host_clock().boottime + 7_200, 0)) == ""
    ledger.append([event(1)])
    assert await ledger.close(PATIENCE)
    assert numbers(await opened(make(path))) == [1]


async def test_a_ledger_that_is_ruined_while_it_is_open_is_moved_aside_and_nothing_new_is_lost(
    make: Ledgers, tmp_path: Path
) -> None:
    path = tmp_path / "ledger.db"
    ledger = await filled(make, path)
    assert await ledger.close(PATIENCE)
    ledger = make(path)
    await opened(ledger)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("UPDATE meta SET value = value")  # it makes the daemon read the file again
    other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    other.close()
    ruin_header(path)
    ledger.append([event(1_000)], position=LogPosition("b1", 5))
    assert await ledger.flush(PATIENCE)
    memory = await recalled(ledger)
    assert memory.begun
    assert len(moved_aside(path)) == 1
    assert await ledger.close(PATIENCE)
    memory = await opened(make(path))
    assert numbers(memory) == [1_000]
    assert memory.position == LogPosition("b1", 5)


async def test_names_of_corrupt_ledgers_never_collide_and_their_number_is_bounded(
    make: Ledgers, tmp_path: Path
) -> None:
    path = tmp_path / "ledger.db"
    for number in range(25):
        replace_by_text(path)
        ledger = make(path)
        memory = await ledger.open(PATIENCE)
        assert (memory is not None) is (number < 20)
        if number >= 20:
            assert "check the disk" in ledger.error(host_clock())
        assert await ledger.close(PATIENCE)
    assert len([file for file in tmp_path.glob("ledger.db.corrupt-*") if not file.name.endswith(SUFFIX)]) == 20


async def test_a_ruined_log_costs_its_own_content_and_no_more(make: Ledgers, tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    ledger = make(path)
    await opened(ledger)
    ledger.append([event(1)], position=LogPosition("b1", 1))
    assert await ledger.close(PATIENCE)
    ledger = make(path)
    await opened(ledger)
    ledger.append([event(2)], position=LogPosition("b1", 2))
    assert await ledger.flush(PATIENCE)
    log = path.with_name("ledger.db-wal").read_bytes()
    ruined = tmp_path / "ruined" / "ledger.db"
    ruined.parent.mkdir()
    ruined.write_bytes(path.read_bytes())
    ruined.with_name("ledger.db-wal").write_bytes(log[:40] + b"\xa5" * (len(log) - 40))
    memory = await opened(make(ruined))
    assert numbers(memory) == [1]
    assert memory.position == LogPosition("b1", 1)


async def test_a_refused_ledger_is_left_alone_and_reported(make: Ledgers, tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE meta (key, value)")
        database.execute("INSERT INTO meta VALUES ('schema', '9.0')")
    database.close()
    before = path.read_bytes()
    ledger = make(path)
    assert await ledger.open(PATIENCE) is None
    assert "install the newer gpuwarden" in ledger.error(host_clock())
    assert path.read_bytes() == before
    path.unlink()
    assert (await recalled(ledger)).begun
    assert await ledger.flush(PATIENCE)  # its memory is there before the rest of what the thread does at once
    assert ledger.error(host_clock()) == ""


# --- Disks that do not take it -------------------------------------------------------------------------------------


async def test_without_a_directory_events_wait_and_are_written_later(make: Ledgers, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("no directory")
    ledger = make()
    assert await ledger.open(PATIENCE) is None
    assert str(tmp_path / "state/ledger.db") in ledger.error(host_clock())
    ledger.append([event(1)], position=LogPosition("b1", 1))
    assert not await ledger.flush(PATIENCE)
    assert ledger.unwritten == 1
    (tmp_path / "state").unlink()
    assert await ledger.flush(PATIENCE)
    assert ledger.error(host_clock()) == ""
    assert await ledger.close(PATIENCE)
    assert numbers(await opened(make())) == [1]


async def test_a_ledger_that_is_read_late_is_an_error_until_it_is_read(make: Ledgers) -> None:
    ledger = make()
    assert await ledger.open(0.0) is None
    assert "not judged yet" in ledger.error(host_clock())
    await recalled(ledger)
    assert ledger.error(host_clock()) == ""


async def test_the_thread_tries_again_by_itself(make: Ledgers, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("no directory")
    ledger = make()
    assert await ledger.open(PATIENCE) is None
    (tmp_path / "state").unlink()
    async with asyncio.timeout(PATIENCE):
        while ledger.recall() is None:
            ledger.tend()
            await asyncio.sleep(0.1)


async def test_what_waits_is_bounded_and_a_checkpoint_makes_the_loss_good(make: Ledgers, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("no directory")
    ledger = make(capacity=10)
    assert await ledger.open(PATIENCE) is None
    for number in range(1, 16):
        ledger.append([event(number)], position=LogPosition("b1", number))
    assert (ledger.unwritten, ledger.dropped) == (10, 5)
    assert ledger.checkpoint_due(host_clock())
    ledger.append(checkpoint=[event(15)])
    (tmp_path / "state").unlink()
    assert await ledger.close(PATIENCE)
    memory = await opened(make())
    assert numbers(memory) == [15]
    assert memory.position == LogPosition("b1", 15)


async def test_a_ledger_that_somebody_moved_away_is_begun_again(make: Ledgers, tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    ledger = await filled(make, path)
    for file in tmp_path.glob("ledger.db*"):
        file.rename(tmp_path / f"taken.{file.name}")
    ledger.append([event(1_000)])
    assert not await ledger.flush(PATIENCE)
    assert "No such file" in ledger.error(host_clock())
    assert (await recalled(ledger)).begun
    assert await ledger.close(PATIENCE)
    assert numbers(await opened(make(path))) == [1_000]


@pytest.mark.slow
async def test_a_ledger_that_another_process_locks_is_reported_and_waited_for(make: Ledgers, tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    ledger = await filled(make, path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    ledger.append([event(1_000)])
    assert not await ledger.flush(PATIENCE)
    assert "another process holds" in ledger.error(host_clock())
    other.close()
    assert await ledger.flush(PATIENCE)


FULL = """
import asyncio, pathlib, resource, sys
from support.ledgers import *

async def main():
    ledger = Ledger(pathlib.Path(sys.argv[1]), machine=HERE, boot_id="b1")
    await opened(ledger)
    await fill_until_it_fails(ledger, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1)))

resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, -1))
asyncio.run(main())
"""


def test_a_file_that_may_not_grow_is_reported_and_the_queue_is_written_once_it_may(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", FULL, path], env=environ, check=True, timeout=60)
    check_in_order(path)


@pytest.mark.disposable
async def test_a_full_disk_is_reported_and_the_queue_is_written_once_there_is_room(
    make: Ledgers, tmp_path: Path
) -> None:
    with tmpfs(tmp_path / "disk", "1m") as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(500_000))
        ledger = make(disk / "ledger.db")
        await opened(ledger)
        await fill_until_it_fails(ledger, ballast.unlink)
        check_in_order(disk / "ledger.db")


@pytest.mark.disposable
async def test_a_disk_that_turns_read_only_is_reported_and_the_ledger_is_still_read(
    make: Ledgers, tmp_path: Path
) -> None:
    with tmpfs(tmp_path / "disk", "4m") as disk:
        ledger = make(disk / "ledger.db")
        await opened(ledger)
        ledger.append([event(1)])
        assert await ledger.close(PATIENCE)
        remount(disk, "ro")
        ledger = make(disk / "ledger.db")
        assert numbers(await opened(ledger)) == [1]
        assert "ead-only" in ledger.error(host_clock())
        ledger.append([event(2)])
        remount(disk, "rw")
        assert await ledger.close(PATIENCE)
        assert numbers(await opened(make(disk / "ledger.db"))) == [1, 2]


@pytest.mark.disposable
async def test_a_filesystem_that_is_frozen_at_the_start_holds_up_nothing(make: Ledgers, tmp_path: Path) -> None:
    with ext4(tmp_path / "disk") as disk:
        path = disk / "state/ledger.db"
        ledger = make(path)
        with frozen(disk):
            assert await ledger.open(0.2) is None
            assert "has not responded" in ledger.error(later())
            ledger.append([event(1)], position=LogPosition("b1", 1))
            assert not await ledger.flush(0.2)
        assert (await recalled(ledger)).begun
        assert await ledger.flush(PATIENCE)
        assert await ledger.close(PATIENCE)
        check_in_order(path)


@pytest.mark.disposable
async def test_a_filesystem_that_freezes_holds_up_nothing(make: Ledgers, tmp_path: Path) -> None:
    with ext4(tmp_path / "disk") as disk:
        ledger = make(disk / "ledger.db")
        await opened(ledger)
        ledger.append([event(1)])
        assert await ledger.flush(PATIENCE)
        with frozen(disk):
            for number in range(2, 1_002):
                ledger.append([event(number)], position=LogPosition("b1", number))
                await asyncio.sleep(0)
            assert not await ledger.flush(0.2)
            assert "has not responded" in ledger.error(later())
        assert await ledger.close(PATIENCE)
        check_in_order(disk / "ledger.db")
