"""The reader over character devices: a terminal, and on a disposable host the real /dev/kmsg."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from uuid import uuid4

import pytest

from gpuwarden_collectors.event_facts import LogGap, XidEvent
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.kernel_log import reader
from gpuwarden_collectors.kernel_log.sources import KmsgDevice
from support.disposable import kernel_log_writer
from support.kernel_log import BOOT, Received, following, line
from support.waiting import until

KMSG = Path("/dev/kmsg")
SYSLOG_ACTION_SIZE_BUFFER = 10
pytestmark = pytest.mark.xdist_group("kernel log")  # one of them fills the ring, which loses the records of the others
ANY = (0, 1)
"""What these tests write has the facility of a user, as all that root writes there."""


def texts(received: Received, token: str) -> list[str]:
    return [e.text for e in received.events if isinstance(e, XidEvent) and token in e.text]


async def test_a_device_is_read_record_by_record_and_a_broken_one_is_reported() -> None:
    writer, terminal = os.openpty()  # a character device that gives one line for each read and breaks on request
    path = Path(os.ttyname(terminal))
    os.write(writer, (line(1) + line(2)).encode())
    async with following(path) as (log, received):
        await until(lambda: received.sequences() == [1, 2])
        os.write(writer, line(4).encode())
        await until(lambda: received.sequences() == [1, 2, 4])
        assert received.gaps() == [1]
        os.close(terminal)
        os.close(writer)
        await until(lambda: log.errors > 0)
        assert str(path) in log.error


async def test_a_device_that_has_no_record_for_long_is_no_daemon_that_stood_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reader, "BEAT", 0.01)
    up = [100.0]
    writer, terminal = os.openpty()
    async with following(Path(os.ttyname(terminal)), clock=lambda: Stamp(up[0], 5000.0), monotonic=lambda: up[0]) as (
        log,
        received,
    ):
        await until(lambda: log.complete)
        up[0] = 3_700.0
        await until(lambda: log._at_end == up[0])
        os.write(writer, line(1, seconds=90.0).encode())
        await until(lambda: len(received.events) == 1)
    assert received.events[0].at.boottime == 3_700.0
    os.close(terminal)
    os.close(writer)


@pytest.mark.disposable
async def test_a_line_written_to_the_kernel_log_is_read_at_once_and_marked_as_not_the_kernels() -> None:
    token = uuid4().hex
    async with following(KMSG, facilities=ANY) as (log, received):
        await until(lambda: log.complete)  # until then a record has the log's own time, which NTP does not steer
        before = time.clock_gettime(time.CLOCK_BOOTTIME)
        with kernel_log_writer() as write:
            write(f"<4>NVRM: Xid (PCI:0000:4e:00): 13, pid=1, name=x, {token}")
            await until(lambda: bool(texts(received, token)))
        [seen] = [e for e in received.events if isinstance(e, XidEvent) and token in e.text]
        assert seen.at.boottime >= before
        assert seen.origin is not None
        assert (seen.origin.boot_id, seen.origin.facility) == (BOOT, 1)


@pytest.mark.disposable
async def test_more_than_the_kernels_ten_lines_arrive_and_a_restart_repeats_and_loses_none() -> None:
    token = uuid4().hex
    with kernel_log_writer() as write:
        async with following(KMSG, facilities=ANY) as (log, received):
            for number in range(50):
                write(f"<4>NVRM: Xid (PCI:0000:4e:00): 13, {token} {number}")
            await until(lambda: len(texts(received, token)) == 50)
            position = log.position
        for number in range(50, 60):
            write(f"<4>NVRM: Xid (PCI:0000:4e:00): 13, {token} {number}")
        async with following(KMSG, facilities=ANY, resume=position) as (log, again):
            await until(lambda: len(texts(again, token)) == 10)
            assert texts(received, token) + texts(again, token) == [f"{token} {number}" for number in range(60)]
            assert log.gaps == 0


@pytest.mark.disposable
async def test_a_ring_that_was_overwritten_before_it_was_read_is_a_gap_of_as_many_records() -> None:
    ring = ctypes.CDLL(None).klogctl(SYSLOG_ACTION_SIZE_BUFFER, None, 0)
    token = uuid4().hex
    with kernel_log_writer() as write:
        async with following(KMSG, facilities=ANY) as (log, received):
            write(f"<4>NVRM: Xid (PCI:0000:4e:00): 13, {token} first")
            await until(lambda: len(texts(received, token)) == 1)
            written = 2 * ring // 512
            for _ in range(written):  # the loop does not turn meanwhile
                write(f"<15>gpuwarden test: filling the ring {'.' * 512}")
            write(f"<4>NVRM: Xid (PCI:0000:4e:00): 13, {token} last")
            await until(lambda: len(texts(received, token)) == 2)
            [lost] = received.gaps()
            assert 0 < lost <= written
            assert (log.gaps, log.lost) == (1, lost)
            kinds = [
                e for e in received.events if isinstance(e, LogGap) or (isinstance(e, XidEvent) and token in e.text)
            ]
            assert [isinstance(e, LogGap) for e in kinds] == [False, True, False]


@pytest.mark.disposable
async def test_a_record_larger_than_the_buffer_makes_the_buffer_grow() -> None:
    device = KmsgDevice(os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK), size=16)
    records: list[bytes] = []
    while not (turn := device.read(1000)).drained:
        records += turn.records
    device.close()
    assert max(len(record) for record in records + turn.records) > 16
