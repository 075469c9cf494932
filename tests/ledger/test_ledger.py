"""What is written into the ledger can be read again: by the next start, by another process, by another version."""

from __future__ import annotations

import math
import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gpuwarden.health.model import NODE, Event, EventKind, Key, gpu
from gpuwarden.ledger.errors import LedgerRefused, LedgerUnavailable
from gpuwarden.ledger.reader import read_only
from gpuwarden.ledger.rows import Recorded
from gpuwarden.ledger.store import Entry, Store
from gpuwarden_collectors.event_facts import LogPosition
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.host import MachineIdentity
from support.mounts import tmpfs

WALL = 1_800_000_000.0
DAY = 86_400.0


def event(number: int, kind: str = EventKind.XID, /, **data: str | float | None) -> Event:
    key = Key("xid", gpu("0000:4e:00.0"), str(number % 100))
    return Event(kind=kind, at=Stamp(float(number), WALL + number), boot_id="b1", key=key, data={"n": number, **data})


def events(*numbers: int) -> tuple[Event, ...]:
    return tuple(map(event, numbers))


def numbers(recorded: list[Recorded]) -> list[object]:
    return [each.event.data["n"] for each in recorded]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state dir, 100% odd?" / "ledger.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with Store.open(path, now=WALL) as store:
        yield store


# --- What is remembered --------------------------------------------------------------------------------------------


def test_events_come_back_as_they_were_and_in_order(store: Store) -> None:
    written = (
        event(1, text="NVRM: Xid (PCI:0000:4e:00): 79", temperature=71.5, none=None),
        Event(kind=EventKind.BOOT, at=Stamp(0.25, WALL), boot_id="b2"),
        Event(kind=EventKind.RAISED, at=Stamp(3, WALL - 1e6), boot_id="b2", key=Key("disk_full", NODE, "/var")),
    )
    store.append([Entry(events=written[:1]), Entry(events=written[1:])])
    assert store.memory().events == written


@pytest.mark.parametrize(
    "odd",
    [
        Event(kind="kind\udcff", at=Stamp(math.nan, math.inf), boot_id="b\0b", data={"\ud800": "\udfff\0"}),
        Event(kind="k" * 10**6, at=Stamp(1, 1), boot_id="b", key=Key("c", NODE, "d" * 10**6)),
        event(1, text="x" * 10**6, number=10**30, nan=math.nan),
        event(1, **{f"field{number}": float(number) for number in range(10_000)}),
    ],
    ids=["no unicode", "endless", "large values", "many values"],
)
def test_any_event_can_be_written_and_takes_bounded_room(store: Store, odd: Event) -> None:
    store.append([Entry(events=(odd,)), Entry(events=events(2))])
    read, after = store.events()
    assert len(repr(read.event)) < 20_000
    assert after.event == event(2)


def test_a_row_that_somebody_edited_is_still_read(store: Store, path: Path) -> None:
    store.append([Entry(events=events(1, 2))])
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("UPDATE events SET data = '{not json' WHERE id = 1")
        other.execute("UPDATE events SET data = '[1]' WHERE id = 2")
    other.close()
    assert [each.data for each in store.memory().events] == [{}, {}]


def test_the_kernel_log_position_moves_together_with_its_events(store: Store) -> None:
    assert store.position() is None
    store.append([Entry(events=events(1), position=LogPosition("b1", 7))])
    assert store.memory().position == LogPosition("b1", 7)


def test_nothing_of_a_batch_is_kept_if_a_part_of_it_cannot_be(store: Store) -> None:
    store.append([Entry(position=LogPosition("b1", 1))])
    too_large = LogPosition("b1", 10**5000)  # more digits than Python writes
    with pytest.raises(ValueError, match="digits"):
        store.append([Entry(events=events(1), position=LogPosition("b1", 2)), Entry(position=too_large)])
    assert store.memory().events == ()
    assert store.position() == LogPosition("b1", 1)


def test_a_checkpoint_replaces_everything_before_it(store: Store) -> None:
    store.append([Entry(events=events(1, 2), checkpoint=events(102)), Entry(events=events(3))])
    assert store.memory().events == events(102, 3)
    store.append([Entry(events=events(4), checkpoint=events(104, 105))])
    assert store.memory().events == events(104, 105)
    assert numbers(store.events()) == [1, 2, 3, 4]


# --- Pruning -------------------------------------------------------------------------------------------------------


def test_old_events_go_after_35_days(store: Store) -> None:
    store.append([Entry(events=events(0, 10, 20), checkpoint=())])
    assert store.prune(WALL + 35 * DAY + 15) == 2
    assert numbers(store.events()) == [20]


def test_too_many_events_go_oldest_first_and_a_few_at_a_time(store: Store) -> None:
    store.append([Entry(events=events(*range(100)), checkpoint=())])
    assert store.prune(WALL, keep_rows=50, most=30) == 30
    assert store.prune(WALL, keep_rows=50, most=30) == 20
    assert store.prune(WALL, keep_rows=50, most=30) == 0
    assert numbers(store.events()) == list(range(50, 100))


def test_what_no_checkpoint_covers_is_not_pruned(store: Store) -> None:
    store.append([Entry(events=events(1), checkpoint=events(1)), Entry(events=events(2, 3))])
    assert store.prune(WALL + 100 * DAY, keep_rows=1) == 1
    assert store.memory().events == events(1, 2, 3)


def test_an_id_is_never_used_again(store: Store) -> None:
    store.append([Entry(events=events(1, 2), checkpoint=())])
    store.prune(WALL + 100 * DAY)
    store.append([Entry(events=events(3))])
    assert [each.id for each in store.events()] == [3]


# --- Queries -------------------------------------------------------------------------------------------------------


def test_events_are_asked_for_by_time_by_kind_and_page_by_page(store: Store) -> None:
    store.append([Entry(events=(*events(1, 2), event(3, EventKind.RAISED), event(4, EventKind.CLEARED)))])
    assert numbers(store.events(since=WALL + 3)) == [3, 4]
    assert numbers(store.events(kinds=[EventKind.RAISED, EventKind.CLEARED])) == [3, 4]
    assert numbers(store.events(kinds=["no such kind"])) == []
    first = store.events(limit=3)
    assert numbers(first) == [1, 2, 3]
    assert numbers(store.events(after=first[-1].id, limit=3)) == [4]


# --- Machines ------------------------------------------------------------------------------------------------------


def test_another_machine_s_events_are_set_aside_and_kept(store: Store, path: Path) -> None:
    store.append([Entry(events=events(1), position=LogPosition("b1", 7), checkpoint=events(1))])
    changed = Event(kind=EventKind.MACHINE_CHANGED, at=Stamp(5, WALL), boot_id="b2", data={"n": 5})
    store.archive(MachineIdentity(dmi="new"), changed)
    store.append([Entry(events=events(6))])
    memory = store.memory()
    assert memory.events == (changed, event(6))
    assert memory.position is None
    assert memory.begun
    assert numbers(store.events()) == [5, 6]
    assert store.machine() == MachineIdentity(dmi="new")
    with closing(sqlite3.connect(path)) as other, other:
        assert other.execute("SELECT count(*) FROM events").fetchone() == (3,)
    other.close()
    assert store.prune(WALL + 36 * DAY) == 1  # in the end they go too


# --- Files and versions --------------------------------------------------------------------------------------------


def test_only_the_owner_writes_and_only_the_group_reads(store: Store, path: Path) -> None:
    store.append([Entry(events=events(1))])
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in (path.parent, *path.parent.iterdir())}
    assert modes == {path.parent.name: 0o750, "ledger.db": 0o640, "ledger.db-wal": 0o640, "ledger.db-shm": 0o640}


def test_a_newer_major_version_is_refused_and_left_as_it_is(path: Path) -> None:
    Store.open(path, now=WALL).close()
    set_version(path, "2.0")
    before = path.read_bytes()
    with pytest.raises(LedgerRefused, match=r"version 2\.0.*install the newer gpuwarden"):
        Store.open(path, now=WALL)
    with pytest.raises(LedgerRefused, match=r"version 2\.0"):
        read_only(path)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["ledger.db"]


def test_a_newer_minor_version_is_used_and_stays_what_it_is(path: Path) -> None:
    Store.open(path, now=WALL).close()
    set_version(path, "1.7")
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("ALTER TABLE events ADD COLUMN added TEXT NOT NULL DEFAULT 'later'")
    other.close()
    with Store.open(path, now=WALL) as store:
        store.append([Entry(events=events(1))])
        assert store.memory().events == events(1)
    with closing(sqlite3.connect(path)) as other, other:
        assert other.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone() == ("1.7",)
    other.close()


def test_somebody_else_s_database_is_refused_and_left_as_it_is(path: Path) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("CREATE TABLE recipes (name)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(LedgerRefused, match="not a ledger of gpuwarden"):
        Store.open(path, now=WALL)
    assert path.read_bytes() == before


def set_version(path: Path, version: str) -> None:
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("UPDATE meta SET value = ? WHERE key = 'schema'", (version,))
    other.close()


# --- Reading beside the daemon -------------------------------------------------------------------------------------


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in folder.iterdir()}


def seen_by_another_process(path: Path, *, user: int = 0) -> str:
    """The numbers of the events that a reader of its own process sees, or what it complained of."""
    script = f"""
import os, pathlib, sys
from gpuwarden.ledger.reader import read_only
if {user}:
    os.setgroups([{user}]), os.setgid({user}), os.setuid({user})
with read_only(pathlib.Path({str(path)!r})) as reader:
    print(*(each.event.data["n"] for each in reader.events()))
"""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=60, env=environ
    )
    return done.stdout.strip() + done.stderr


def test_others_read_while_the_daemon_writes(store: Store, path: Path) -> None:
    for number in range(1, 51):
        store.append([Entry(events=events(number))])
        with read_only(path) as reader:
            assert reader.memory().events == store.memory().events
    assert seen_by_another_process(path) == " ".join(map(str, range(1, 51)))


def test_the_very_first_event_is_seen_already(store: Store, path: Path) -> None:
    store.append([Entry(events=events(1))])
    assert seen_by_another_process(path) == "1"


def test_reading_writes_nothing_whether_a_daemon_runs_or_not(path: Path) -> None:
    with Store.open(path, now=WALL) as store:
        store.append([Entry(events=events(1))])
        before = contents(path.parent)
        assert seen_by_another_process(path) == "1"
        assert contents(path.parent) == before
    before = contents(path.parent)
    assert seen_by_another_process(path) == "1"
    assert contents(path.parent) == before
    assert set(before) == {"ledger.db"}


def test_reading_after_a_kill_gives_what_was_committed_and_repairs_nothing(path: Path) -> None:
    script = f"""
import os, pathlib, test_ledger
store = test_ledger.Store.open(pathlib.Path({str(path)!r}), now=1.0)
store.append([test_ledger.Entry(events=test_ledger.events(1, 2))])
os.kill(os.getpid(), 9)
"""
    search = os.pathsep.join((*sys.path, str(Path(__file__).parent)))
    assert subprocess.call([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": search}) == -9
    before = contents(path.parent)
    assert set(before) == {"ledger.db", "ledger.db-wal", "ledger.db-shm"}
    assert seen_by_another_process(path) == "1 2"
    assert contents(path.parent) == before


def test_the_connection_itself_cannot_write(store: Store, path: Path) -> None:
    with read_only(path) as reader, pytest.raises(sqlite3.OperationalError, match="readonly"):
        reader._db.execute("DELETE FROM events")


def test_a_missing_ledger_is_reported_and_not_created(path: Path) -> None:
    with pytest.raises(LedgerUnavailable, match="No such file"):
        read_only(path)
    assert not path.parent.exists()


def test_an_empty_file_is_no_ledger_yet(path: Path) -> None:
    path.parent.mkdir()
    path.touch()
    with pytest.raises(LedgerUnavailable, match="still empty"):
        read_only(path)


@pytest.mark.needs("root")
@pytest.mark.parametrize("running", [True, False], ids=["while a daemon runs", "while none runs"])
def test_another_user_of_the_group_may_read(*, running: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are closed to others
        path = Path(folder, "state", "ledger.db")
        Path(folder).chmod(0o755)
        with Store.open(path, now=WALL) as store:
            store.append([Entry(events=events(1, 2))])
            if not running:
                store.close()
            for file in (path.parent, *path.parent.iterdir()):
                os.chown(file, 0, 65_534)
            assert seen_by_another_process(path, user=65_534) == "1 2"


@pytest.mark.disposable
@pytest.mark.parametrize("running", [True, False], ids=["while a daemon runs", "while none runs"])
def test_a_read_only_mount_can_be_read(tmp_path: Path, *, running: bool) -> None:
    with tmpfs(tmp_path / "disk", "4m") as disk, Store.open(disk / "ledger.db", now=WALL) as store:
        store.append([Entry(events=events(1, 2))])
        if not running:
            store.close()
        (tmp_path / "view").mkdir()
        subprocess.run(["mount", "--bind", "-o", "ro", disk, tmp_path / "view"], check=True)
        try:
            with read_only(tmp_path / "view/ledger.db") as reader:
                assert numbers(reader.events()) == [1, 2]
        finally:
            subprocess.run(["umount", "--lazy", tmp_path / "view"], check=True)
