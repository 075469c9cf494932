"""Messages that wait for delivery: bounded on disk, and of everything the latest state stays."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.notify.queue import FILE_MOST, Message, Queue
from gpuwarden.notify.store import QueueStore


def filled(queue: Queue, subjects: list[int], target: str = "a", size: int = 10) -> int:
    return sum(
        queue.put([(target, Message(f"finding/{subject}", f"{target}{n}", "x" * size))]).total()
        for n, subject in enumerate(subjects)
    )


@settings(deadline=None, max_examples=60)
@given(subjects=st.lists(st.integers(0, 5), max_size=120), rows_most=st.integers(10, 40))
def test_when_it_is_full_superseded_messages_go_first_and_the_latest_of_each_subject_stays(
    subjects: list[int], rows_most: int
) -> None:
    queue = Queue(None, rows_most=rows_most)
    gone = filled(queue, subjects)
    left = [waiting.message for waiting in queue.head("a", 1_000)]
    assert (len(left), gone) == (min(len(subjects), rows_most), max(0, len(subjects) - rows_most))
    latest = {f"finding/{subject}": f"a{n}" for n, subject in enumerate(subjects)}
    assert {message.subject: message.key for message in left} == latest
    assert [int(message.key[1:]) for message in left] == sorted(int(message.key[1:]) for message in left)
    queue.close()


def test_where_nothing_is_superseded_the_oldest_goes_and_targets_do_not_supersede_each_other() -> None:
    queue = Queue(None, rows_most=10)
    filled(queue, list(range(6)), "a")
    assert filled(queue, list(range(6)), "b") == 2
    assert [waiting.message.key for waiting in queue.head("a", 10)] == ["a2", "a3", "a4", "a5"]
    assert queue.rows == {"a": 4, "b": 6}
    queue.close()


def test_it_stays_within_its_size_on_disk_and_the_latest_of_everything_in_it(tmp_path: Path) -> None:
    """A week of the largest messages."""
    path = tmp_path / "notify.db"
    queue = Queue(path)
    for part in range(12):
        queue.put([("a", Message(f"finding/{n % 500}", f"{part}-{n}", "x" * 10_000)) for n in range(500)])
    size = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert size <= FILE_MOST + (8 << 20)  # of which 8 MiB are the log of SQLite, until it is copied
    left = queue.head("a", 100_000)
    assert {waiting.message.key for waiting in left} >= {f"11-{n}" for n in range(500)}
    queue.close()
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= FILE_MOST
    again = Queue(path)
    assert again.head("a", 100_000) == left
    assert again.rows["a"] == len(left)
    again.close()


async def test_a_corrupt_file_is_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "notify.db"
    path.write_bytes(b"no database at all, but long enough to be taken for one" * 100)
    store = QueueStore(path, ["a"])
    store.put([("a", Message("health", "k", "{}"))])
    assert [waiting.message.key for waiting in await store.head("a", 10)] == ["k"]
    assert (store.error, (tmp_path / "notify.db.corrupt").exists()) == ("", True)
    await asyncio.to_thread(store.close)


async def test_a_disk_that_takes_nothing_loses_nothing_and_gets_it_when_it_is_well_again(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.touch()
    store = QueueStore(folder / "notify.db", ["a"])
    for key in ("k1", "k2", "k3"):
        store.put([("a", Message("health", key, "{}"))])
    first, second, third = await store.head("a", 10)
    assert [one.message.key for one in (first, second, third)] == ["k1", "k2", "k3"]
    assert "kept in memory" in store.error
    store.done("a", first)
    folder.unlink()
    store.put([("a", Message("health", "k4", "{}"))])
    assert [one.message.key for one in await store.head("a", 10)] == ["k2", "k3", "k4"]
    assert (store.error, store.rows["a"]) == ("", 3)
    await asyncio.to_thread(store.close)
    queue = Queue(folder / "notify.db")
    assert [one.message.key for one in queue.head("a", 10)] == ["k2", "k3", "k4"]
    queue.close()


async def test_a_delivered_message_is_not_sent_again_while_the_disk_cannot_delete_it(tmp_path: Path) -> None:
    path = tmp_path / "notify.db"
    store = QueueStore(path, ["a"])
    store.put([("a", Message("health", key, "{}")) for key in ("k1", "k2")])
    first, second = await store.head("a", 10)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("CREATE TRIGGER never BEFORE DELETE ON message BEGIN SELECT RAISE(FAIL, 'no'); END")
    store.done("a", first)
    assert await store.head("a", 10) == [second]
    assert "kept in memory" in store.error
    holder.execute("DROP TRIGGER never")
    holder.close()
    store.put([("a", Message("health", "k3", "{}"))])
    assert [one.message.key for one in await store.head("a", 10)] == ["k2", "k3"]
    assert (store.error, store.rows["a"]) == ("", 2)
    await asyncio.to_thread(store.close)


async def test_what_a_disk_did_not_take_is_written_at_the_next_read_that_succeeds(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.touch()
    store = QueueStore(folder / "notify.db", ["a"])
    store.put([("a", Message("health", "k1", "{}"))])
    assert len(await store.head("a", 10)) == 1
    assert "kept in memory" in store.error
    folder.unlink()
    (one,) = await store.head("a", 10)
    assert (one.id > 0, one.message.key, store.error) == (True, "k1", "")
    await asyncio.to_thread(store.close)


async def test_a_disk_that_hangs_blocks_nobody_is_reported_and_what_does_not_fit_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process holds the file; SQLite waits 5 s for it."""
    monkeypatch.setattr("gpuwarden.notify.store.STALLED", 0.05)
    path = tmp_path / "notify.db"
    Queue(path).close()
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    store = QueueStore(path, ["a"])
    for n in range(1_500):
        store.put([("a", Message("health", f"k{n}", "{}"))])
    assert (holder.in_transaction, store.rows.total()) == (True, 0)
    async with asyncio.timeout(60):
        while "is it frozen?" not in store.error:
            await asyncio.sleep(0.01)
    monkeypatch.undo()
    holder.execute("ROLLBACK")
    holder.close()
    kept = len(await store.head("a", 2_000))
    assert store.gone["a"] > 0
    assert (kept + store.gone["a"], store.error) == (1_500, "")
    await asyncio.to_thread(store.close)


async def test_a_queue_belongs_to_one_daemon_and_a_second_keeps_its_own_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "notify.db"
    first, second = QueueStore(path, ["a"]), QueueStore(path, ["b"])
    first.put([("a", Message("health", "k1", "{}"))])
    assert len(await first.head("a", 10)) == 1
    second.put([("b", Message("health", "k2", "{}"))])
    assert [one.message.key for one in await second.head("b", 10)] == ["k2"]
    assert "belongs to another gpuwarden that runs" in second.error
    assert (await second.head("a", 10), len(await first.head("a", 10))) == ([], 1)
    await asyncio.to_thread(first.close)
    assert [one.message.key for one in await second.head("b", 10)] == ["k2"]
    assert second.error == ""
    await asyncio.to_thread(second.close)


async def test_a_message_read_from_a_file_that_broke_meanwhile_is_not_taken_for_another(tmp_path: Path) -> None:
    path = tmp_path / "notify.db"
    store = QueueStore(path, ["a"])
    store.put([("a", Message("health", "k1", "{}"))])
    (taken,) = await store.head("a", 10)
    await asyncio.to_thread(store.close)
    for file in tmp_path.iterdir():
        file.unlink()
    reopened = QueueStore(path, ["a"])
    reopened.put([("a", Message("health", "k2", "{}"))])
    reopened.done("a", taken)
    assert [one.message.key for one in await reopened.head("a", 10)] == ["k2"]
    await asyncio.to_thread(reopened.close)


async def test_what_is_for_nobody_any_more_is_forgotten(tmp_path: Path) -> None:
    queue = Queue(tmp_path / "notify.db")
    filled(queue, [1, 2], "gone")
    filled(queue, [1], "a")
    queue.close()
    store = QueueStore(tmp_path / "notify.db", ["a"])
    assert len(await store.head("a", 10)) == 1
    assert await store.head("gone", 10) == []
    await asyncio.to_thread(store.close)
