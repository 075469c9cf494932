"""The ring on disk: whatever is cut, full, removed or too much, it opens, stays within its limits and says what is missing."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuwarden.engine.engine import Engine
from gpuwarden.features.black_box.boxes import KEPT_MOST, SAME_SPACING, SPACING, Box, Failure
from gpuwarden.features.black_box.members import whole_members
from gpuwarden.features.black_box.recording import Recording
from gpuwarden.features.black_box.ring import RING_MOST, SEGMENT_MOST, SEGMENTS_MOST, Ring
from gpuwarden.health.view import Rules
from gpuwarden.trace.reader import TraceError, TraceReader
from gpuwarden.trace.records import HostEventsSeen
from gpuwarden_collectors.event_facts import Source, XidEvent
from gpuwarden_collectors.facts import Stamp
from support.black_boxes import BOOT, LiveNode, drained, failure, frozen_of, story
from support.mounts import tmpfs
from support.quick import first_quick

GONE = "GPU gone from the bus, no Xid"


def at(seconds: float, boot: float = 0.0) -> Stamp:
    return Stamp(seconds, 1.8e9 + boot + seconds)


def head(seconds: float, boot_id: str = BOOT) -> bytes:
    began = f'{{"began":"{boot_id}","memory":[],"at":{seconds},"wall":{1.8e9 + seconds}}}\n'
    return b'{"trace":1,"gpuwarden":"1.2.3"}\n' + began.encode()


def line(seconds: float) -> bytes:
    return f'{{"errors":{{}},"at":{seconds}}}\n'.encode()


def noise(seconds: float) -> bytes:
    """Return a line of a kind that no reader knows, which cannot be compressed below 12 KB."""
    return f'{{"noise":"{os.urandom(12_000).hex()}","at":{seconds}}}\n'.encode()


def filled(folder: Path, *until: float, begun: float = 0.0) -> Ring:
    """Return the ring of a daemon that began at `begun` and flushed at each of the times."""
    ring = Ring(folder)
    ring.begin(head(begun), BOOT, at(begun), 0)
    for seconds in until:
        ring.append(line(seconds), at(seconds))
    return ring


def frozen(ring: Ring, failed: Failure) -> str:
    """Freeze, and return what is missing."""
    box = ring.freeze(failed)
    assert box is not None
    return box.missing


# --- what a daemon leaves


def test_a_ring_that_was_cut_at_any_byte_opens_with_all_whole_flushes(tmp_path: Path) -> None:
    (path,) = (segment.path for segment in filled(tmp_path / "whole", 30.0, 60.0).segments)
    content = path.read_bytes()
    ends = [end for end, _ in whole_members(path)]
    until = [0.0, 30.0, 60.0]
    for size in range(len(content) + 1):
        folder = tmp_path / "cut"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / path.name).write_bytes(content[:size])
        ring = Ring(folder)
        ring.open()
        whole = [end for end in ends if end <= size]
        assert [segment.size for segment in ring.segments] == whole[-1:]
        assert [segment.until.boottime for segment in ring.segments] == until[: len(whole)][-1:]
        assert sum(file.stat().st_size for file in folder.iterdir()) == ring.size


@pytest.mark.parametrize("left", [b"\0" * 4096, b"\x1f\x8b\x08\0\0", b"rubbish" * 9], ids=["zeros", "begun", "rubbish"])
def test_what_a_power_loss_leaves_behind_the_last_flush_is_cut(left: bytes, tmp_path: Path) -> None:
    (segment,) = filled(tmp_path, 30.0).segments
    with segment.path.open("ab") as file:
        file.write(left)
    ring = Ring(tmp_path)
    ring.open()
    assert [opened.size for opened in ring.segments] == [segment.size] == [segment.path.stat().st_size]


def test_the_daemon_after_a_crash_keeps_what_was_before_and_a_box_says_what_is_missing(tmp_path: Path) -> None:
    filled(tmp_path, 3000.0)
    (tmp_path / ".frozen-1.new").write_bytes(b"half of a box")
    ring = filled(tmp_path, 3200.0, begun=3040.0)
    assert [segment.number for segment in ring.segments] == [1, 2]
    assert frozen(ring, failure(at=3200.0)) == "40 s from 2027-01-15T08:50:00.000Z (nothing was recorded)"
    assert not list(tmp_path.glob(".*"))


def test_a_boot_in_between_is_said(tmp_path: Path) -> None:
    filled(tmp_path, 3000.0)
    ring = Ring(tmp_path)
    ring.begin(head(20.0, "boot-2"), "boot-2", at(20.0, boot=3200.0), 0)
    assert frozen(ring, failure(at=20.0, boot_id="boot-2")).startswith("4 min from 2027-01-15T08:50:00.000Z (a boot)")


def test_a_jump_of_the_wall_clock_drops_nothing(tmp_path: Path) -> None:
    filled(tmp_path, 1000.0)
    ring = Ring(tmp_path)
    ring.begin(head(1001.0), BOOT, Stamp(1001.0, 9e8), 0)
    ring.append(line(2000.0), Stamp(2000.0, 9e8))
    assert [round(segment.seconds) for segment in ring.segments] == [1000, 999]
    assert frozen(ring, failure(at=2000.0)) == ""


def test_a_young_daemon_and_lost_records_are_said(tmp_path: Path) -> None:
    ring = filled(tmp_path, 600.0)
    ring.begin(head(605.0), BOOT, at(605.0), 12)
    missing = frozen(ring, failure(at=605.0))
    assert "12 records before 2027-01-15T08:10:05.000Z" in missing
    assert "20 min before 2027-01-15T08:00:00.000Z (nothing was recorded before)" in missing


def test_a_hole_before_the_failure_is_said(tmp_path: Path) -> None:
    assert (
        frozen(filled(tmp_path, 3000.0), failure(at=3100.0))
        == "100 s from 2027-01-15T08:50:00.000Z (nothing was recorded)"
    )


def test_daemons_that_crash_again_and_again_leave_few_files(tmp_path: Path) -> None:
    for n in range(SEGMENTS_MOST + 20):
        filled(tmp_path, begun=float(n))
    assert len(list(tmp_path.iterdir())) == SEGMENTS_MOST


def test_the_oldest_goes_once_the_rest_is_enough(tmp_path: Path) -> None:
    ring = Ring(tmp_path)
    for begun in range(0, 36_000, 600):
        ring.begin(head(begun), BOOT, at(begun), 0)
        ring.append(line(begun + 600), at(begun + 600))
    assert 5400 <= ring.seconds <= 6600
    assert sorted(tmp_path.iterdir()) == [segment.path for segment in ring.segments]


# --- a storm


@pytest.mark.parametrize("share", first_quick(1, [8, 1]))
def test_a_storm_of_lines_shortens_the_time_and_never_exceeds_disk_or_memory(
    share: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`share`: of the bytes of the real ring, one in so many."""
    monkeypatch.setattr("gpuwarden.features.black_box.ring.RING_MOST", RING_MOST // share)
    monkeypatch.setattr("gpuwarden.features.black_box.recording.SEGMENT_MOST", SEGMENT_MOST // share)
    lines, most, largest = 500 // share, 0, 0
    engine = Engine(BOOT, Rules())
    recording = Recording(tmp_path, engine, lambda _: None)
    recording.tend(at(0.0))
    engine.listeners.append(recording.take)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for n in range(lines):
        texts = (os.urandom(10_000).hex() for _ in range(3))
        events = [
            XidEvent(at=at(n), source=Source.KERNEL_LOG, slot="0000:4e:00.0", xid=31, text=text) for text in texts
        ]
        engine.listeners[0](HostEventsSeen(at=at(n), events=tuple(events)))
        recording.tend(at(n))
        drained(recording)
        largest = max(largest, recording.ring.size)
        most = max(most, tracemalloc.get_traced_memory()[0] - before)
    tracemalloc.stop()
    recording.freeze(failure(at=lines), {})
    recording.end(60.0)
    assert (recording.lost, recording.error(at(lines))) == (0, "")
    assert RING_MOST / share / 2 < largest <= RING_MOST / share
    assert most <= 1 << 20
    (box,) = recording.ring.boxes
    assert "records took too much room" in box.missing
    with TraceReader(box.path) as trace:
        assert sum(isinstance(record, HostEventsSeen) for record in trace) > lines // 5


# --- a disk that does not take it


def test_a_folder_that_cannot_be_made_is_an_error_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file, and no folder")
    recording = Recording(tmp_path / "state/black-box", Engine(BOOT, Rules()), lambda _: None)
    recording.tend(at(0.0))
    recording.freeze(failure(at=1.0), {})
    recording.end(60.0)
    assert "state/black-box: Not a directory" in recording.error(at(1.0))
    assert recording.lost > 0


def test_a_segment_that_cannot_be_read_does_not_keep_the_ring_from_opening(tmp_path: Path) -> None:
    """A folder in its place fails every read of it, like a bad block under it."""
    filled(tmp_path, 60.0)
    unreadable = tmp_path / "ring-00000002.trace.gz"
    unreadable.mkdir()
    ring = Ring(tmp_path)
    ring.begin(head(120.0), BOOT, at(120.0), 0)
    assert [segment.number for segment in ring.segments] == [1, 3]
    assert unreadable.is_dir()


def test_after_an_error_it_begins_anew_and_says_what_was_lost(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file, and no folder")
    recording = Recording(tmp_path / "state/black-box", Engine(BOOT, Rules()), lambda _: None)
    recording.tend(at(0.0))
    drained(recording)
    for n in range(5):
        recording.take(HostEventsSeen(at=at(n), events=()))
    (tmp_path / "state").unlink()
    recording.tend(at(60.0))
    recording.freeze(failure(at=60.0), {})
    recording.end(60.0)
    (box,) = recording.ring.boxes
    assert recording.error(at(60.0)) == ""
    assert "5 records before" in box.missing


@pytest.mark.disposable
def test_a_full_disk_keeps_the_newest_and_still_takes_a_box(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "512k") as disk:
        ring = Ring(disk / "black-box")
        for begun in range(0, 3000, 60):
            ring.begin(head(begun), BOOT, at(begun), 0)
            ring.append(noise(begun) + line(begun + 60), at(begun + 60))
        kept = len(ring.segments)
        assert 0 < kept < 40
        assert "records took too much room" in frozen(ring, failure(at=3000.0))
        assert 0 < len(ring.segments) < kept
        with TraceReader(ring.boxes[0].path) as trace:
            assert max(record.at.boottime for record in trace) == 3000.0


@pytest.mark.parametrize("taken", [True, False], ids=["slow disk", "disk that hangs"])
async def test_who_waits_for_it_goes_on_once_the_box_is_frozen_or_the_disk_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, taken: bool
) -> None:
    monkeypatch.setattr("gpuwarden.features.black_box.recording.SAVED_WITHIN", 60.0 if taken else 0.1)
    disk = threading.Event()
    boxes: list[Box] = []

    def frozen(box: Box) -> None:
        disk.wait(60.0)
        boxes.append(box)

    recording = Recording(tmp_path, Engine(BOOT, Rules()), frozen)
    recording.tend(at(0.0))
    recording.freeze(failure(at=1.0), {})
    waits = asyncio.create_task(recording.saved())
    await asyncio.sleep(0)
    assert not waits.done()
    if taken:
        disk.set()
    await waits
    assert len(boxes) == taken
    disk.set()
    recording.end(60.0)


async def test_who_waits_for_it_goes_on_though_no_box_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file, and no folder")
    recording = Recording(tmp_path / "state/black-box", Engine(BOOT, Rules()), lambda _: None)
    recording.tend(at(0.0))
    recording.freeze(failure(at=1.0), {})
    await recording.saved()
    assert recording.ring.boxes == ()
    recording.end(60.0)


# --- what is frozen


def test_a_frozen_box_that_was_cut_at_any_byte_is_read_up_to_there_and_says_so(tmp_path: Path) -> None:
    box, _ = frozen_of(story(GONE, 60.0), tmp_path)
    content = box.path.read_bytes()
    cut = tmp_path / "cut.trace.gz"
    whole = outcome(box.path)
    assert not whole[1]
    step = max(1, len(content) // 150)
    sizes = {*range(0, len(content), step), *range(100), *(end for end, _ in whole_members(box.path))} - {len(content)}
    for size in sizes:
        cut.write_bytes(content[:size])
        records, error = outcome(cut)
        assert error
        assert records <= whole[0]


def outcome(path: Path) -> tuple[int, str]:
    """Return how many records are read, and the error at the end."""
    records = 0
    try:
        with TraceReader(path) as trace:
            for _ in trace:
                records += 1
    except TraceError as error:
        return records, str(error)
    return records, ""


def test_a_part_that_is_not_there_begins_the_next_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuwarden.features.black_box.recording.SEGMENT_SECONDS", 60.0)
    node = LiveNode(tmp_path)
    node.live(story(GONE, 300.0))
    node.end()
    parts = sorted(tmp_path.glob("ring-*"))
    joined = tmp_path / "joined"

    def begins(without: Callable[[int], bool]) -> int:
        joined.write_bytes(b"".join(part.read_bytes() for n, part in enumerate(parts) if not without(n)))
        with TraceReader(joined) as trace:
            return sum(type(record).__name__ == "Began" for record in trace)

    assert len(parts) > 3
    assert (begins(lambda _: False), begins(lambda n: n == 1)) == (1, 2)


def test_one_box_for_what_comes_together_and_none_of_the_same_for_half_an_hour(tmp_path: Path) -> None:
    ring = filled(tmp_path, 1000.0)
    assert ring.freeze(failure("xid.79@gpu/0000:4e:00.0", 1000.0))
    assert not ring.freeze(failure("xid.48@gpu/0000:5e:00.0", 1000.0 + SPACING - 1))
    assert not ring.freeze(failure("xid.79@gpu/0000:4e:00.0", 1000.0 + SAME_SPACING - 1))
    assert ring.freeze(failure("xid.48@gpu/0000:5e:00.0", 1000.0 + SPACING))
    assert ring.freeze(failure("xid.79@gpu/0000:4e:00.0", 1000.0 + SAME_SPACING))
    again = Ring(tmp_path)
    again.open()
    assert again.boxes == ring.boxes
    assert not again.freeze(failure("xid.79@gpu/0000:4e:00.0", 1000.0 + SAME_SPACING + 1))


def test_five_are_kept_and_those_of_failures_that_are_over_go_first(tmp_path: Path) -> None:
    ring = filled(tmp_path, 1000.0)
    names = [f"xid.{n}@gpu/0000:4e:00.0" for n in range(KEPT_MOST + 3)]
    for n, name in enumerate(names):
        ring.freeze(failure(name, 1000.0 + n * SPACING, standing={names[0], name}))
    assert [box.finding for box in ring.boxes] == [names[0], *names[-KEPT_MOST + 1 :]]
    assert sorted(tmp_path.glob("frozen-*")) == [box.path for box in ring.boxes]


def test_a_name_from_outside_makes_no_path(tmp_path: Path) -> None:
    ring = filled(tmp_path, 1000.0)
    box = ring.freeze(failure("mount_lost@mount/../../etc/a b\n", 1000.0))
    assert box is not None
    assert box.path.parent == tmp_path
    assert box.path.name == "frozen-20270115T081640Z-mount_lost-..-..-etc-a-b-.trace.gz"
    assert box.path.stat().st_mode & 0o777 == 0o600


def test_a_file_of_somebody_else_in_the_folder_is_named_as_what_it_is(tmp_path: Path) -> None:
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "frozen-20270115T081640Z-notes.trace.gz").write_text("notes")
    ring = filled(tmp_path, 1000.0)
    (box,) = ring.boxes
    assert box.missing == "its first line cannot be read (ValueError)"
