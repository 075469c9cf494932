"""What waits to be told: bounded on disk, and of everything the latest state stays."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path

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


def test_only_where_nothing_is_superseded_the_oldest_goes_and_one_target_s_word_is_not_another_s() -> None:
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


def test_a_corrupt_file_is_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "notify.db"
    path.write_bytes(b"no database at all, but long enough to be taken for one" * 100)
    queue = Queue(path)
    assert filled(queue, [1]) == 0
    queue.close()
    assert queue.moved == "notify.db.corrupt"
    assert (tmp_path / queue.moved).exists()


async def test_a_disk_that_takes_nothing_costs_durability_and_no_message(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = QueueStore(tmp_path / "file/notify.db", ["a"])
    store.put([("a", Message("health", "k", "{}"))])
    assert [waiting.message.key for waiting in await store.head("a", 10)] == ["k"]
    assert "kept in memory" in store.trouble
    await asyncio.to_thread(store.close)


async def test_nobody_waits_for_a_disk_that_hangs(tmp_path: Path) -> None:
    """Another process holds the file, so that every write waits for it."""
    path = tmp_path / "notify.db"
    Queue(path).close()
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    store = QueueStore(path, ["a"])
    began = time.monotonic()
    for n in range(3_000):
        store.put([("a", Message("health", f"k{n}", "{}"))])
    blocked = time.monotonic() - began
    holder.execute("ROLLBACK")
    holder.close()
    assert blocked < 4.0  # of SQLite's 5 s for a lock, three thousand times
    assert store.dropped >= 1_900
    assert [waiting.message.key for waiting in await store.head("a", 1)] == ["k0"]
    await asyncio.to_thread(store.close)


async def test_what_is_for_nobody_any_more_is_forgotten(tmp_path: Path) -> None:
    queue = Queue(tmp_path / "notify.db")
    filled(queue, [1, 2], "gone")
    filled(queue, [1], "a")
    queue.close()
    store = QueueStore(tmp_path / "notify.db", ["a"])
    assert len(await store.head("a", 10)) == 1
    assert await store.head("gone", 10) == []
    await asyncio.to_thread(store.close)
