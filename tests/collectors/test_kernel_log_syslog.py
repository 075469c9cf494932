"""The kernel log by syslog(2): over rings made here, and on a disposable host in a process that may not open /dev/kmsg."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from uuid import uuid4

import pytest

from gpuwarden.base.threads import detached
from gpuwarden_collectors.base import CollectorError
from gpuwarden_collectors.event_facts import BY_TIME, LogPosition, XidEvent
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.kernel_log import reader
from gpuwarden_collectors.kernel_log.belief import disbelieved
from gpuwarden_collectors.kernel_log.lines import Record, event_of, parse_record
from gpuwarden_collectors.kernel_log.sources import Turn, open_source
from gpuwarden_collectors.kernel_log.syslog import ANCHOR, POLL, SHARE, WINDOW, SyslogRing
from support.disposable import WITHOUT_KMSG, kernel_log_writer
from support.kernel_log import BOOT, Received, following, line
from support.waiting import until

XID = "NVRM: Xid (PCI:0000:4e:00): 79, pid=1, name=x, GPU has fallen off the bus."
KMSG = Path("/dev/kmsg")
OTHER = "usb 1-1: new device"


def at(seconds: float, text: str = OTHER, priority: int = 4, caller: str = "") -> str:
    """Return a record as syslog(2) gives it: each of its lines has the head."""
    head = f"<{priority}>[{seconds:12.6f}]{caller} "
    return "".join(f"{head}{part}\n" for part in text.split("\n"))


class Ring:
    """What READ_ALL gives: the newest whole records that fit."""

    def __init__(self, *records: str, size: int = 1 << 20) -> None:
        self.records, self.size, self.sizes = list(records), size, list[int]()

    def __call__(self, size: int) -> bytes:
        self.sizes.append(size)
        kept = b""
        for record in reversed(self.records):
            if len(kept) + len(record.encode()) > size:
                break
            kept = record.encode() + kept
        return kept

    def source(self) -> SyslogRing:
        return SyslogRing(self, self.size)


def drain(source: SyslogRing) -> list[Record]:
    records: list[Record | None] = []
    while True:
        turn = source.read(100)
        records += map(parse_record, turn.records)
        if turn.drained:
            return [record for record in records if record is not None]


def texts(records: Sequence[Record]) -> list[str]:
    return [record.text for record in records]


# --- what is new ---------------------------------------------------------------------------------------------------


def test_lines_are_taken_once_in_order_and_only_the_end_of_the_ring_is_read_for_them() -> None:
    ring = Ring(*(at(n, f"line {n}") for n in range(20_000)))
    source = ring.source()
    assert texts(drain(source)) == [f"line {n}" for n in range(20_000)]
    ring.sizes.clear()
    assert drain(source) == []
    ring.records += [at(20_000, "a"), at(20_001, "b")]
    assert texts(drain(source)) == ["a", "b"]
    assert set(ring.sizes) == {WINDOW}


def test_more_than_the_end_of_the_ring_holds_is_read_whole() -> None:
    ring = Ring(*(at(n) for n in range(100)))
    source = ring.source()
    drain(source)
    ring.records += [at(100 + n, "x" * 500) for n in range(WINDOW // 500 + 10)]
    assert len(drain(source)) == WINDOW // 500 + 10


def test_a_ring_that_takes_long_to_walk_over_is_read_less_often_but_not_while_much_comes() -> None:
    class Slow(Ring):
        def __call__(self, size: int) -> bytes:
            end = time.thread_time() + 0.03
            while time.thread_time() < end:
                pass
            return super().__call__(size)

    ring = Slow(*(at(n, f"line {n}") for n in range(100)))
    source = ring.source()
    drain(source)
    assert source.poll == POLL
    drain(source)
    assert source.poll is not None
    assert source.poll >= 0.03 / SHARE
    ring.records += [at(n, "x" * 100) for n in range(100, 1500)]
    drain(source)
    assert ring.sizes[-2:] == [WINDOW, ring.size]
    assert source.poll == POLL


def test_a_record_says_what_the_device_says_of_it() -> None:
    [plain, caller, escaped] = drain(
        Ring(at(1.5, priority=12), at(99_999.000_001, XID, caller="[  T4711]"), at(99_999.5, r"a\b")).source()
    )
    assert (plain.facility, plain.level, plain.microseconds, plain.text) == (1, 4, 1_500_000, OTHER)
    assert (caller.text, caller.microseconds) == (XID, 99_999_000_001)
    assert escaped.text == r"a\b"


def test_numbers_grow_with_each_line_and_are_the_same_in_every_process() -> None:
    ring = Ring(at(5.0, "a"), at(5.0, "b", priority=6), at(4.0, "from another CPU"), at(6.0))
    first, again = drain(ring.source()), drain(ring.source())
    assert first == again
    numbers = [record.sequence for record in first]
    assert numbers == sorted(set(numbers))
    assert numbers[0] > BY_TIME


def test_lines_without_times_are_refused_and_what_to_do_is_named() -> None:
    ring = Ring("<4>usb 1-1: new device\n")
    with pytest.raises(OSError, match="echo Y > /sys/module/printk/parameters/time"):
        ring.source().read(100)


# --- which lines are believed --------------------------------------------------------------------------------------


def believed(*records: str) -> list[int]:
    """The numbers of the Xids that count."""
    events = [
        event_of(record, Stamp(0.0, 0.0), BOOT)
        for record in drain(Ring(*records).source())
        if not disbelieved(record, (0,))
    ]
    return [event.xid for event in events if isinstance(event, XidEvent)]


@pytest.mark.parametrize(
    "record",
    [
        at(1.0, XID, priority=12),
        at(1.0, f'overlayfs: unrecognized mount option "\n{XID}" or missing value'),
        at(1.0, f'overlayfs: unrecognized mount option "x\nNVRM: y\n{XID}" or missing value'),
        at(1.0, f"{XID}\nIN= OUT=lo SRC=127.0.0.1 DST=127.0.0.1"),
        at(1.0, f"{XID}\nNVRM: IN= OUT=lo SRC=127.0.0.1 DST=127.0.0.1"),
    ],
)
def test_no_line_in_a_text_that_a_user_chose_is_a_drivers(record: str) -> None:
    assert believed(record) == []


def test_lines_of_the_driver_count_though_they_have_one_time() -> None:
    uuid = "NVRM: GPU at PCI:0000:4e:00: GPU-12345678-1234-1234-1234-123456789012"
    assert believed(at(1.0, uuid), at(1.0, XID), at(1.0, XID.replace("79", "48"))) == [79, 48]


def test_the_message_of_three_lines_about_a_gpu_that_is_gone_names_the_gpu() -> None:
    probe = (
        "NVRM: The NVIDIA GPU 0000:4e:00.0\nNVRM: (PCI ID: 10de:2330) installed in this system has\n"
        "NVRM: fallen off the bus and is not responding to commands."
    )
    [record] = drain(Ring(at(1.0, probe)).source())
    event = event_of(record, Stamp(0.0, 0.0), BOOT)
    assert isinstance(event, XidEvent)
    assert (event.xid, event.slot) == (79, "0000:4e:00.0")


# --- restarts and gaps ---------------------------------------------------------------------------------------------


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> Ring:
    """Replace the log at any path by a ring of the test."""
    made = Ring()

    def opened(_: str) -> SyslogRing:
        return SyslogRing(made, made.size, poll=0.005)

    monkeypatch.setattr(reader, "open_source", opened)
    return made


def xid(seconds: float, number: int) -> str:
    return at(seconds, XID.replace(" 79,", f" {number},").replace("GPU has fallen off the bus.", "x"))


def xids(received: Received) -> list[int]:
    return [event.xid for event in received.events if isinstance(event, XidEvent)]


async def test_a_restart_repeats_no_line_and_leaves_none_out(ring: Ring) -> None:
    ring.records += [xid(1, 31), at(2), xid(3, 43)]
    async with following(KMSG) as (log, received):
        await until(lambda: log.complete)
        assert xids(received) == [31, 43]
        position = log.position
    ring.records += [at(4), xid(5, 95)]
    async with following(KMSG, resume=position) as (log, received):
        await until(lambda: log.complete)
        assert (xids(received), received.gaps()) == ([95], [])


async def test_a_ring_that_was_overwritten_while_nothing_ran_is_a_gap_of_unknown_size(ring: Ring) -> None:
    ring.records += [xid(1, 31)]
    async with following(KMSG) as (log, _):
        await until(lambda: log.complete)
        position = log.position
    ring.records[:] = [xid(5, 95), xid(6, 48)]
    async with following(KMSG, resume=position) as (log, received):
        await until(lambda: xids(received) == [95, 48])
        assert received.gaps() == [0]
        assert (log.gaps, log.lost) == (1, 0)


@pytest.mark.parametrize("more", [[], [xid(9, 95)]])
async def test_a_ring_that_was_overwritten_or_cleared_is_one_gap_and_then_followed(ring: Ring, more: list[str]) -> None:
    ring.records += [xid(n, 31) for n in range(1, 3)]
    async with following(KMSG) as (log, received):
        await until(lambda: log.complete)
        ring.records[:] = more
        await until(lambda: received.gaps() == [0])
        ring.records.append(xid(10, 48))
        await until(lambda: xids(received)[-1:] == [48])
        assert xids(received)[2:] == [95] * len(more) + [48]
        assert (log.gaps, log.lost) == (1, 0)


async def test_the_end_of_the_anchor_is_found_among_equal_texts(ring: Ring) -> None:
    ring.records += [at(n, "the same") for n in range(3 * ANCHOR)]
    async with following(KMSG) as (log, _):
        await until(lambda: log.complete)
        ring.records += [at(1000 + n, "the same") for n in range(10)]
        await until(lambda: log.records == 3 * ANCHOR + 10)
        assert log.gaps == 0


@pytest.mark.parametrize("kind", ["numbers", "times"])
async def test_after_another_way_of_reading_the_log_what_is_there_is_history_behind_a_gap(
    ring: Ring, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon of the host may become a pod within one boot, or the reverse."""
    old, path = LogPosition(BOOT, 7), KMSG
    if kind == "times":
        monkeypatch.undo()
        old, path = LogPosition(BOOT, BY_TIME + 7), tmp_path / "kmsg"
        path.write_text(line(1, xid=95))
    ring.records += [xid(1, 95)]
    async with following(path, resume=old) as (log, received):
        await until(lambda: xids(received) == [95])
        ring.records.append(xid(1_000_000, 48))
        if kind == "times":
            with path.open("a") as file:
                file.write(line(2, xid=48))
        await until(lambda: xids(received) == [95, 48])
        assert received.gaps() == [0]
        assert [event.history for event in received.events if isinstance(event, XidEvent)] == [True, False]
        assert log.position is not None
        assert (log.position.sequence >= BY_TIME) == (kind == "numbers")


# --- the loop ------------------------------------------------------------------------------------------------------


class HeldRing(Ring):
    """Each read of it takes until it is let go, and a few seconds at most."""

    def __init__(self, *records: str) -> None:
        super().__init__(*records)
        self.reading, self.let_go = False, threading.Event()

    def __call__(self, size: int) -> bytes:
        text = super().__call__(size)
        self.reading = True
        self.let_go.wait(5.0)
        self.reading = False
        return text


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldRing]:
    """Replace the log at any path by a ring whose reads the test holds."""
    made = HeldRing(xid(1, 31), xid(2, 43))
    monkeypatch.setattr(reader, "open_source", lambda _: SyslogRing(made, made.size, poll=0.005))
    yield made
    made.let_go.set()


async def test_the_loop_is_free_while_the_ring_is_read(held: HeldRing) -> None:
    async with following(KMSG) as (log, received):
        await until(lambda: held.reading)  # the loop has turns, and the read still goes on
        for _ in range(20):
            await asyncio.sleep(0.005)
        assert (held.reading, len(held.sizes)) == (True, 1), "no second read beside it"
        assert (received.events, log.complete) == ([], False)
        held.let_go.set()
        await until(lambda: log.complete)
        held.records.append(xid(3, 95))
        await until(lambda: xids(received) == [31, 43, 95])
        assert received.gaps() == []


async def test_what_was_being_read_when_the_daemon_ends_is_the_next_ones_and_is_read_once(held: HeldRing) -> None:
    async with following(KMSG) as (log, first):
        held.let_go.set()
        await until(lambda: log.complete)
        held.let_go.clear()
        held.records.append(xid(3, 95))
        sizes = len(held.sizes)
        await until(lambda: held.reading and len(held.sizes) > sizes)
    position = log.position
    held.let_go.set()
    await until(lambda: not held.reading)
    await asyncio.sleep(0.05)
    async with following(KMSG, resume=position) as (again, second):
        await until(lambda: again.complete)
        assert (xids(first) + xids(second), second.gaps()) == ([31, 43, 95], [])
    assert log.position == position, "what came after the end was discarded"


async def test_where_no_thread_can_be_started_the_ring_is_read_later(ring: Ring) -> None:
    refusals = iter((True, True))

    def aside(read: Callable[[], Turn]) -> asyncio.Future[Turn]:
        if next(refusals, False):
            refused: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
            refused.set_exception(RuntimeError("can't start new thread"))
            return refused
        return detached("kernel log", read)

    ring.records += [xid(1, 31)]
    async with following(KMSG, aside=aside) as (log, received):
        await until(lambda: bool(log.error))
        assert "can't start new thread" in log.error
        await until(lambda: log.complete)
        assert (xids(received), received.gaps(), log.error) == ([31], [], "")


# --- the kernel's own ----------------------------------------------------------------------------------------------

_FOLLOWED = """
import asyncio, json, sys
sys.path[:0] = {path!r}
from support.kernel_log import following
from pathlib import Path
from gpuwarden_collectors.event_facts import LogPosition

async def main():
    position = json.loads(sys.argv[1])
    resume = LogPosition(*position) if position else None
    async with following(Path("/dev/kmsg"), facilities=(0, 1), resume=resume) as (log, received):
        print("began", flush=True)
        sent = 0
        while not received.events or sys.argv[2] not in getattr(received.events[-1], "text", ""):
            await asyncio.sleep(0.05)
        texts = [e.text for e in received.events if "token" in getattr(e, "text", "")]
        print(json.dumps([texts, [log.position.boot_id, log.position.sequence], log.gaps]), flush=True)

asyncio.run(main())
"""


def follower(position: list[object] | None, last: str) -> subprocess.Popen[str]:
    """A process that follows the log until a line with `last` came."""
    code = _FOLLOWED.format(path=sys.path)
    command = [*WITHOUT_KMSG, sys.executable, "-c", code]
    return subprocess.Popen([*command, json.dumps(position), last], stdout=subprocess.PIPE, text=True)


def result(process: subprocess.Popen[str]) -> tuple[list[str], list[object], int]:
    with process:
        output, _ = process.communicate(timeout=60)
    texts, position, gaps = json.loads(output.splitlines()[-1])
    return texts, position, gaps


@pytest.mark.disposable
@pytest.mark.xdist_group("kernel log")
def test_a_process_that_may_not_open_the_device_reads_the_same_log_and_a_restart_repeats_and_loses_nothing() -> None:
    token = f"token {uuid4().hex}"
    with kernel_log_writer() as write:

        def xid_line(number: int) -> None:
            write(f"<4>NVRM: Xid (PCI:0000:4e:00): 13, {token} {number}")

        first = follower(None, f"{token} 4")
        assert first.stdout is not None
        assert first.stdout.readline() == "began\n"
        for number in range(5):
            xid_line(number)
        seen, position, _ = result(first)
        assert [text for text in seen if token in text] == [f"{token} {number}" for number in range(5)]
        for number in range(5, 8):
            xid_line(number)
        again, _, gaps = result(follower(position, f"{token} 7"))
        assert (again, gaps) == ([f"{token} {number}" for number in range(5, 8)], 0)


def test_a_device_that_cannot_be_opened_for_the_moment_is_not_read_in_another_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reading by syslog(2) would last until the daemon ends, and lines already in the ring would be history."""

    def none_left(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "open", none_left)
    with pytest.raises(CollectorError, match="cannot open the kernel log /dev/kmsg: Too many open files"):
        open_source("/dev/kmsg")


@pytest.mark.disposable
def test_without_the_capability_the_refusal_names_both_ways_and_what_a_pod_needs() -> None:
    restrict = Path("/proc/sys/kernel/dmesg_restrict")
    before = restrict.read_text()
    restrict.write_text("1\n")
    try:
        code = (
            f"import sys; sys.path[:0] = {sys.path!r}\n"
            "from gpuwarden_collectors.kernel_log.sources import open_source\nopen_source('/dev/kmsg')"
        )
        command = ["setpriv", "--bounding-set=-syslog", "--inh-caps=-syslog", sys.executable, "-c", code]
        done = subprocess.run([*WITHOUT_KMSG, *command], capture_output=True, text=True, check=False)
    finally:
        restrict.write_text(before)
    assert "/dev/kmsg: Permission denied; syslog(2): Operation not permitted" in done.stderr
    assert "kernelLog.enabled" in done.stderr
    assert "ausearch" in done.stderr
