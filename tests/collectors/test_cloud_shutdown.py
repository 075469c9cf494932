"""A shutdown of the operating system, as logind announces it over a real message bus."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from jeepney import DBusAddress, new_signal

from gpuwarden_collectors.base import host_clock
from gpuwarden_collectors.cloud.dbus import MESSAGE_MOST, Bus
from gpuwarden_collectors.cloud.facts import Answer, AnswerKind, Kind
from gpuwarden_collectors.cloud.shutdown import Shutdown
from gpuwarden_collectors.cloud.system_bus import BusError
from support.cloud_replies import only
from support.logind import Logind, message_bus
from support.waiting import until

PATIENCE = 60.0


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Path]:
    with message_bus(tmp_path) as path:
        yield path


@contextmanager
def logind_on(bus: Path, *, refuse: bool = False, delay: float = 5.0, going_down: bool = False) -> Iterator[Logind]:
    logind = Logind(bus, refuse=refuse, delay=delay, going_down=going_down)
    try:
        yield logind
    finally:
        logind.end()


@pytest.fixture
async def source(bus: Path) -> AsyncIterator[Shutdown]:
    """Yield one that holds a shutdown up for longer than any test takes."""
    source = Shutdown(host_clock, path=str(bus), hold=PATIENCE, timeout=PATIENCE)
    yield source
    await source.close()


async def asked(source: Shutdown) -> Answer:
    async with asyncio.timeout(PATIENCE):
        return await source.questions[0].ask()


def descriptors() -> set[str]:
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}


async def test_a_shutdown_is_inhibited_reported_and_released(bus: Path) -> None:
    source = Shutdown(host_clock, path=str(bus), hold=0.2, timeout=PATIENCE)
    with logind_on(bus, delay=20.0) as logind:
        assert (await asked(source)).kind is AnswerKind.NONE
        await until(lambda: logind.inhibited() == 1)
        waiting = asyncio.create_task(asked(source))
        logind.prepare_for_shutdown()
        notice = only(await waiting)
        assert notice.deadline is not None
        assert (notice.kind, notice.hard, notice.estimated) == (Kind.SHUTDOWN, True, True)
        assert notice.deadline.boottime - host_clock().boottime <= source._hold  # of 20 s that logind would allow
        await until(lambda: logind.inhibited() == 0)
    await source.close()


async def test_one_that_is_called_off_is_over_and_the_next_one_is_held_up_again(bus: Path, source: Shutdown) -> None:
    with logind_on(bus) as logind:
        await asked(source)
        for _ in range(2):
            logind.prepare_for_shutdown()
            assert (await asked(source)).kind is AnswerKind.NOTICE
            logind.prepare_for_shutdown(going_down=False)
            assert [(await asked(source)).kind for _ in range(4)] == [AnswerKind.NONE] * 4
            await until(lambda: logind.inhibited() == 1)


async def test_the_hold_of_one_that_was_called_off_does_not_end_that_of_the_next(bus: Path) -> None:
    """A shutdown may fail or be cancelled before `hold` is over, if that is longer than logind waits."""
    source = Shutdown(host_clock, path=str(bus), hold=1.0, timeout=PATIENCE)
    with logind_on(bus) as logind:
        await asked(source)
        logind.prepare_for_shutdown()
        assert (await asked(source)).kind is AnswerKind.NOTICE
        over = asyncio.get_running_loop().time() + source._hold
        logind.prepare_for_shutdown(going_down=False)
        await until_called_off(source)
        await until(lambda: asyncio.get_running_loop().time() > over + 0.1)
        assert logind.inhibited() == 1
    await source.close()


async def test_one_that_is_under_way_when_we_come_is_seen(bus: Path, source: Shutdown) -> None:
    with logind_on(bus, going_down=True) as logind:
        assert (await asked(source)).kind is AnswerKind.NOTICE
        assert "Inhibit" not in logind.asked


async def test_without_an_inhibitor_the_notice_still_comes(bus: Path, source: Shutdown) -> None:
    with logind_on(bus, refuse=True) as logind:
        assert (await asked(source)).kind is AnswerKind.NONE
        logind.prepare_for_shutdown()
        assert (await asked(source)).kind is AnswerKind.NOTICE


async def test_without_logind_or_without_a_bus_it_is_unknown_and_found_once_it_is_there(
    bus: Path, source: Shutdown, tmp_path: Path
) -> None:
    nowhere = Shutdown(host_clock, path=str(tmp_path / "none"), timeout=PATIENCE)
    assert (await asked(nowhere)).kind is AnswerKind.UNKNOWN
    assert (await asked(source)).kind is AnswerKind.UNKNOWN
    with logind_on(bus):
        assert (await asked(source)).kind is AnswerKind.NONE


async def test_a_bus_that_goes_away_is_unknown_and_no_shutdown(tmp_path: Path) -> None:
    source = Shutdown(host_clock, path=str(tmp_path / "bus"), timeout=PATIENCE)
    for _ in range(2):
        with message_bus(tmp_path) as bus, logind_on(bus):
            assert (await asked(source)).kind is AnswerKind.NONE
        assert (await asked(source)).kind is AnswerKind.UNKNOWN
    await source.close()


async def test_sleep_is_no_notice_and_a_shutdown_after_it_is_one(bus: Path, source: Shutdown) -> None:
    with logind_on(bus) as logind:
        assert (await asked(source)).kind is AnswerKind.NONE
        waiting = asyncio.create_task(asked(source))
        for to in ("", ":1.2"):  # to all, and past our own choice of signals
            logind.prepare_for_sleep(to=to)
        logind.prepare_for_shutdown()
        assert (await waiting).kind is AnswerKind.NOTICE
        assert logind.inhibited() == 1


async def test_a_signal_of_somebody_else_is_none(bus: Path, source: Shutdown) -> None:
    """A signal of another sender is ignored, since only logind owns its name."""
    with logind_on(bus) as logind, logind_on(bus) as stranger:  # the second one does not get the name
        await asked(source)
        stranger.prepare_for_shutdown(to=":1.2")
        assert (await asked(source)).kind is AnswerKind.NONE
        logind.prepare_for_shutdown(to=":1.2")
        assert (await asked(source)).kind is AnswerKind.NOTICE


async def test_what_strangers_send_costs_neither_a_descriptor_nor_the_notice(bus: Path, source: Shutdown) -> None:
    """Anybody may send us signals: with descriptors, of the same name with other values, as many as they like."""
    with logind_on(bus) as logind, logind_on(bus) as stranger:
        await asked(source)
        waiting = asyncio.create_task(asked(source))
        before = descriptors()
        for _ in range(100):
            stranger.announce("PrepareForShutdown", "h", (0,), ":1.2")
            stranger.announce("Other", "ah", ([0] * 3,), ":1.2")
            stranger.announce("PrepareForShutdown", "as", (["text"] * 100,), ":1.2")
        logind.prepare_for_shutdown()
        assert (await waiting).kind is AnswerKind.NOTICE
        assert descriptors() <= before
        assert logind.inhibited() == 1


async def test_a_message_that_is_too_long_ends_the_connection_and_another_is_made(bus: Path, source: Shutdown) -> None:
    with logind_on(bus) as logind:
        await asked(source)
        logind.announce("Other", "ay", (b"x" * MESSAGE_MOST,), ":1.1")
        assert (await asked(source)).kind is AnswerKind.UNKNOWN
        assert (await asked(source)).kind is AnswerKind.NONE
        await until(lambda: logind.inhibited() == 1)


@pytest.mark.slow
async def test_no_message_is_so_odd_that_reading_it_does_more_than_fail() -> None:
    good = new_signal(DBusAddress("/a", interface="a.B"), "Do", "sb", ("text", True)).serialise(7)
    chance = random.Random(7)
    for _ in range(2_000):
        data = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        own, theirs = socket.socketpair()
        own.setblocking(False)
        connection = Bus(PATIENCE)
        connection._socket.close()
        connection._socket = own
        theirs.sendall(good + data)
        theirs.close()
        with pytest.raises(BusError):
            await connection.signal(PATIENCE)
        connection.close()


async def test_where_systemd_waits_for_us_too_the_end_is_later_and_a_stop_may_take_until_then(bus: Path) -> None:
    source = Shutdown(host_clock, path=str(bus), hold=0.2, stop=45.0, timeout=PATIENCE)
    with logind_on(bus) as logind:
        assert (await asked(source)).kind is AnswerKind.NONE
        assert source.ends_in() == 0.0  # a stop by itself is none of a machine
        logind.prepare_for_shutdown()
        notice = only(await asked(source))
        assert notice.deadline is not None
        first = notice.deadline.boottime
        assert source.ends_in() > 0.0
        later = only(await asked_again(source)).deadline
        assert later is not None
        assert abs(later.boottime - first) < 0.001  # seen again, it is the same end
        logind.prepare_for_shutdown(going_down=False)
        await until_called_off(source)
        assert source.ends_in() == 0.0
    await source.close()


async def test_where_systemd_does_not_wait_for_us_a_stop_is_as_quick_as_ever(bus: Path, source: Shutdown) -> None:
    with logind_on(bus) as logind:
        await asked(source)
        logind.prepare_for_shutdown()
        only(await asked(source))
        assert source.ends_in() == 0.0


async def asked_again(source: Shutdown) -> Answer:
    """Ask as the source does after a signal that changed nothing."""
    source._plain = 1
    return await asked(source)


async def until_called_off(source: Shutdown) -> None:
    while (await asked(source)).kind is not AnswerKind.NONE:
        pass
