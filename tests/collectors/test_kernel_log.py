"""The reader over a file that holds one record on each line."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuwarden_collectors.base import CollectorError, SourceAbsent
from gpuwarden_collectors.event_facts import LogPosition, XidEvent
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.kernel_log import reader
from gpuwarden_collectors.kernel_log.reader import KernelLog
from gpuwarden_collectors.kernel_log.sources import LINE_MAX, FollowedFile
from support.kernel_log import BOOT, Received, following, line
from support.waiting import until


@pytest.fixture
def kmsg(tmp_path: Path) -> Path:
    path = tmp_path / "kmsg"
    path.touch()
    return path


def append(path: Path, text: str | bytes) -> None:
    with path.open("ab") as file:
        file.write(text.encode() if isinstance(text, str) else text)


def overwrite(path: Path, text: str) -> None:
    path.write_text(text)


def move_away(path: Path) -> Path:
    return path.rename(path.with_suffix(".1"))


def replace_by_new(path: Path, text: str) -> None:
    move_away(path)
    append(path, text)


def replace_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace_by_file(path: Path, text: str) -> None:
    path.rmdir()
    path.write_text(text)


@contextmanager
def forbidden(path: Path) -> Iterator[None]:
    """Nobody but root may read it, and we are not root."""
    path.chmod(0)
    user = os.geteuid()
    os.seteuid(user or 65534)
    try:
        yield
    finally:
        os.seteuid(user)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


# --- a file --------------------------------------------------------------------------------------------------------


async def test_existing_and_new_lines_are_read_once_in_order(kmsg: Path) -> None:
    append(kmsg, line(1) + "6,2,0,-;usb 1-1: new device\n" + line(3))
    async with following(kmsg) as (log, received):
        await until(lambda: len(received.events) == 2)
        append(kmsg, line(4))
        await until(lambda: len(received.events) == 3)
        assert received.sequences() == [1, 3, 4]
        assert received.positions[-1] == log.position == LogPosition(BOOT, 4)
        assert (log.records, log.gaps, log.error) == (4, 0, "")


async def test_a_storm_is_read_in_few_batches_and_leaves_the_loop_its_turns(kmsg: Path) -> None:
    append(kmsg, "".join(line(number) for number in range(20_000)))
    turns = 0
    async with following(kmsg) as (log, received):
        while log.records < 20_000:
            await asyncio.sleep(0)
            turns += 1
        assert turns > 100
        assert received.sequences() == list(range(20_000))
        assert received.batches < 1000


async def test_after_a_restart_the_same_boot_goes_on_behind_the_position(kmsg: Path) -> None:
    append(kmsg, line(1) + line(2) + line(3))
    async with following(kmsg, resume=LogPosition(BOOT, 2)) as (log, received):
        await until(lambda: bool(received.events))
        assert received.sequences() == [3]
        assert (log.records, log.gaps) == (1, 0)


async def test_another_boot_is_read_from_its_beginning(kmsg: Path) -> None:
    append(kmsg, line(1) + line(2))
    async with following(kmsg, resume=LogPosition("another boot", 900)) as (_, received):
        await until(lambda: len(received.events) == 2)
        assert received.gaps() == []


async def test_missing_numbers_are_a_gap_before_the_next_record(kmsg: Path) -> None:
    append(kmsg, line(10) + line(11) + line(15))
    async with following(kmsg, resume=LogPosition(BOOT, 4)) as (log, received):
        await until(lambda: len(received.events) == 5)
        assert [type(e).__name__ for e in received.events] == ["LogGap", "XidEvent", "XidEvent", "LogGap", "XidEvent"]
        assert received.gaps() == [5, 3]
        assert (log.gaps, log.lost) == (2, 8)


async def test_a_log_that_starts_late_has_no_gap_before_its_first_record(kmsg: Path) -> None:
    append(kmsg, line(5000))
    async with following(kmsg) as (_, received):
        await until(lambda: bool(received.events))
        assert received.gaps() == []


async def test_a_position_beyond_the_end_of_the_log_does_not_make_it_deaf(kmsg: Path) -> None:
    append(kmsg, line(1) + line(2))
    async with following(kmsg, resume=LogPosition(BOOT, 10**9)) as (_, received):
        await until(lambda: received.gaps() == [0])
        append(kmsg, line(3))
        await until(lambda: received.sequences() == [3])


async def test_the_end_of_a_line_is_waited_for(kmsg: Path) -> None:
    whole = line(1)
    append(kmsg, whole[:-20])
    async with following(kmsg) as (log, received):
        append(kmsg, line(1)[-20:-1])
        append(kmsg, "\n" + line(2))
        await until(lambda: received.sequences() == [1, 2])
        assert log.malformed == 0


async def test_a_truncated_file_is_read_from_its_new_beginning(kmsg: Path) -> None:
    append(kmsg, line(1) + line(2) + "4,3,0,-;NVRM: Xid (PCI:0000:4e")
    async with following(kmsg) as (_, received):
        await until(lambda: len(received.events) == 2)
        overwrite(kmsg, line(3))
        await until(lambda: received.sequences() == [1, 2, 3])


async def test_a_replaced_file_is_followed_under_its_name_and_repeats_nothing(kmsg: Path) -> None:
    append(kmsg, line(1) + line(2))
    async with following(kmsg) as (_, received):
        await until(lambda: len(received.events) == 2)
        append(move_away(kmsg), line(3))
        await until(lambda: len(received.events) == 3)
        append(kmsg, line(2) + line(3) + line(4))
        await until(lambda: received.sequences() == [1, 2, 3, 4])


@pytest.mark.parametrize("begin", [overwrite, replace_by_new])
async def test_a_log_whose_numbers_restart_is_a_gap_and_is_then_read(
    kmsg: Path, begin: Callable[[Path, str], object]
) -> None:
    append(kmsg, "".join(line(n) for n in range(1, 9)))
    async with following(kmsg) as (log, received):
        await until(lambda: len(received.events) == 8)
        begin(kmsg, line(1))
        await until(lambda: received.gaps() == [0])
        append(kmsg, line(2, xid=95))
        await until(lambda: isinstance(received.events[-1], XidEvent) and received.events[-1].xid == 95)
        assert log.position == LogPosition(BOOT, 2)


async def test_a_line_without_end_is_bounded_and_the_next_line_is_read(kmsg: Path) -> None:
    append(kmsg, line(1, text="y" * (3 * LINE_MAX)) + line(2))
    file = FollowedFile(str(kmsg), os.open(kmsg, os.O_RDONLY))
    longest = 0
    while not file.read(1).drained:
        longest = max(longest, len(file._partial))
    file.close()
    assert longest == LINE_MAX
    async with following(kmsg) as (_, received):
        await until(lambda: received.sequences() == [1, 2])


async def test_garbage_between_lines_is_counted_and_loses_nothing(kmsg: Path) -> None:
    append(
        kmsg,
        b"\x00\xff\xfe garbage\n\n4,not,a,record;x\n" + line(1).encode() + os.urandom(64).replace(b"\n", b"") + b"\n",
    )
    append(kmsg, line(2))
    async with following(kmsg) as (log, received):
        await until(lambda: received.sequences() == [1, 2])
        assert log.malformed == 4


async def test_an_old_line_has_the_time_of_its_record_and_a_new_one_the_time_it_came(kmsg: Path) -> None:
    append(kmsg, line(1, seconds=40.0))
    # Up for 100 s, suspended for 20 of them.
    async with following(kmsg, clock=lambda: Stamp(100.0, 5000.0), monotonic=lambda: 80.0) as (_, received):
        await until(lambda: len(received.events) == 1)
        append(kmsg, line(2, seconds=79.0))
        await until(lambda: len(received.events) == 2)
    assert [e.at for e in received.events] == [Stamp(60.0, 4960.0), Stamp(100.0, 5000.0)]


async def test_what_came_while_the_daemon_stood_still_has_the_time_at_which_it_came(kmsg: Path) -> None:
    """Its clock is 3 s behind ours, as the line before has shown; a time that cannot be is cut."""
    up = [100.0]
    clock: dict[str, Any] = {"clock": lambda: Stamp(up[0], 5000.0 + up[0]), "monotonic": lambda: up[0]}
    async with following(kmsg, **clock) as (log, received):
        await until(lambda: log.complete)
        append(kmsg, line(1, seconds=97.0))
        await until(lambda: len(received.events) == 1)
        await until(lambda: log._at_end == 100.0)
        append(kmsg, line(2, seconds=117.0) + line(3, seconds=20.0) + line(4, seconds=900.0))
        up[0] = 160.0
        await until(lambda: len(received.events) == 4)
    assert [e.at.boottime for e in received.events] == [100.0, 120.0, 100.0, 160.0]
    assert received.events[1].at.wall == 5120.0


async def test_no_record_lies_in_the_future(kmsg: Path) -> None:
    append(kmsg, line(1, seconds=1e9))
    async with following(kmsg, clock=lambda: Stamp(100.0, 5000.0), monotonic=lambda: 100.0) as (_, received):
        await until(lambda: bool(received.events))
    assert received.events[0].at == Stamp(100.0, 5000.0)


async def test_what_is_older_than_the_first_start_allows_is_history(kmsg: Path) -> None:
    append(kmsg, line(1, seconds=399.0) + line(2, seconds=401.0))
    clock: dict[str, Any] = {"clock": lambda: Stamp(1000.0, 9000.0), "monotonic": lambda: 1000.0}
    async with following(kmsg, history_before=400.0, **clock) as (_, received):
        await until(lambda: len(received.events) == 2)
    assert [e.history for e in received.events if isinstance(e, XidEvent)] == [True, False]
    async with following(kmsg, **clock) as (_, received):
        await until(lambda: len(received.events) == 2)
    assert not any(e.history for e in received.events if isinstance(e, XidEvent))


async def test_two_lines_of_one_error_are_one_event_even_when_they_come_apart(kmsg: Path) -> None:
    async with following(kmsg) as (_, received):
        append(kmsg, line(1, text="GPU has fallen off the bus."))
        await until(lambda: bool(received.events))
        append(kmsg, "4,2,10000000,-;NVRM: GPU 0000:4e:00.0: GPU has fallen off the bus.\n" + line(3, xid=154))
        await until(lambda: len(received.events) == 2)
        assert received.sequences() == [1, 3]


# --- what cannot be followed ---------------------------------------------------------------------------------------


async def test_a_path_that_does_not_exist_is_absent_and_can_be_started_later(tmp_path: Path) -> None:
    received = Received()
    log = KernelLog(str(tmp_path / "kmsg"), BOOT, received)
    with pytest.raises(SourceAbsent, match=r"no kernel log at .*kmsg: in a container pass"):
        log.start()
    assert "no kernel log" in log.error
    append(tmp_path / "kmsg", line(1))
    log.start()
    await until(lambda: received.sequences() == [1])
    assert log.error == ""
    log.close()


async def test_a_missing_permission_is_an_error_with_a_remedy(kmsg: Path) -> None:
    with forbidden(kmsg), pytest.raises(CollectorError, match=r"Permission denied; run as root or .* CAP_SYSLOG"):
        KernelLog(str(kmsg), BOOT, Received()).start()


@pytest.mark.parametrize("kind", ["directory", "pipe", "device"])
async def test_what_is_no_log_is_refused(tmp_path: Path, kind: str) -> None:
    path = {"directory": str(tmp_path), "pipe": str(tmp_path / "pipe"), "device": "/dev/null"}[kind]
    if kind == "pipe":
        os.mkfifo(path)
    with pytest.raises(CollectorError, match="cannot follow the kernel log"):
        KernelLog(path, BOOT, Received()).start()


async def test_a_log_that_breaks_is_opened_again_and_repeats_nothing(
    kmsg: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "FIRST_PAUSE", 0.01)
    append(kmsg, line(1))
    async with following(kmsg) as (log, received):
        await until(lambda: received.sequences() == [1])
        replace_by_directory(kmsg)
        await until(lambda: log.errors > 2)
        assert "cannot follow the kernel log" in log.error
        replace_by_file(kmsg, line(1) + line(2))
        await until(lambda: received.sequences() == [1, 2])
        assert log.error == ""


async def test_a_closed_log_reports_nothing_more_and_leaves_nothing_open(kmsg: Path) -> None:
    before = open_files()
    async with following(kmsg) as (log, received):
        log.start()  # a second start begins again
        log.close()
        append(kmsg, line(1))
        await asyncio.sleep(0.2)
        assert received.events == []
    assert open_files() == before
