"""Waiting for the changes of one file: the kernel log as a file, and the faults of simulated GPUs."""

from __future__ import annotations

import errno
import select
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from gpuwarden_collectors.file_changes import FileChanges
from gpuwarden_collectors.kernel_log.sources import FollowedFile
from support.kernel_log import following, line
from support.waiting import until

NEVER = 3600.0  # seconds between two reads that no test lives to see


def readable(changes: FileChanges) -> bool:
    assert changes.fd is not None
    return bool(select.select([changes.fd], [], [], 0)[0])


def open_files() -> set[Path]:
    return set(Path("/proc/self/fd").iterdir())


def write(path: Path) -> None:
    with path.open("a") as file:
        file.write("more")


def replace(path: Path) -> None:
    path.with_suffix(".new").write_text("other")
    path.with_suffix(".new").rename(path)


@pytest.mark.parametrize("change", [write, replace, Path.unlink, lambda path: path.rename(path.with_suffix(".1"))])
def test_each_change_of_the_file_is_reported_until_it_is_forgotten(
    tmp_path: Path, change: Callable[[Path], object]
) -> None:
    path = tmp_path / "file"
    path.touch()
    with closing(FileChanges(path)) as changes:
        assert not readable(changes)
        change(path)
        assert readable(changes)
        changes.forget()
        assert not readable(changes)


def test_a_file_that_comes_later_is_reported_and_so_are_its_writes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with closing(FileChanges(path)) as changes:
        path.touch()
        assert readable(changes)
        changes.forget()
        write(path)
        assert readable(changes)


def test_writes_to_a_neighbour_or_to_the_file_that_was_replaced_are_not_reported(tmp_path: Path) -> None:
    path, neighbour = tmp_path / "file", tmp_path / "neighbour"
    path.touch()
    neighbour.touch()
    with closing(FileChanges(path)) as changes:
        old = path.rename(tmp_path / "file.1")
        path.touch()
        changes.forget()
        write(old)
        write(neighbour)
        assert not readable(changes)
        write(path)
        assert readable(changes)


def test_of_a_file_in_no_folder_nothing_is_reported_and_no_descriptor_is_left(tmp_path: Path) -> None:
    before = open_files()
    with closing(FileChanges(tmp_path / "no" / "file")) as changes:
        assert changes.fd is None
        changes.forget()
        changes.wait(0.0)
        assert open_files() == before


async def test_a_followed_file_is_read_at_a_change_and_not_by_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FollowedFile, "poll", NEVER)
    kmsg = tmp_path / "kmsg"
    kmsg.write_text("".join(line(n) for n in range(1, 1000)))
    async with following(kmsg) as (_, received):
        await until(lambda: len(received.sequences()) == 999)
        with kmsg.open("a") as file:
            file.write(line(1000))
        await until(lambda: received.sequences()[-1] == 1000)
        kmsg.rename(tmp_path / "kmsg.1")
        kmsg.write_text(line(1001))
        await until(lambda: received.sequences()[-1] == 1001)


async def test_a_followed_file_is_read_by_the_clock_where_no_watch_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: FileChanges) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(FileChanges, "_opened", refused)
    kmsg = tmp_path / "kmsg"
    kmsg.write_text(line(1))
    async with following(kmsg) as (_, received):
        await until(lambda: received.sequences() == [1])
        with kmsg.open("a") as file:
            file.write(line(2))
        await until(lambda: received.sequences() == [1, 2])
