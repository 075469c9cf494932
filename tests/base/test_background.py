"""A caller that writes in the background never waits for a write that hangs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from gpuwarden.base.background import BackgroundWriter, boottime


class Gate:
    """A job that hangs until it is let go, as a write to a frozen filesystem does."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.open = threading.Event()

    def __call__(self) -> None:
        self.begun.set()
        assert self.open.wait(60)


Make = Callable[..., BackgroundWriter]


@pytest.fixture
def errors() -> list[Exception]:
    return []


@pytest.fixture
def make(errors: list[Exception]) -> Iterator[Make]:
    writers: list[BackgroundWriter] = []

    def writer(capacity: int = 100, *, newest_wins: bool = False) -> BackgroundWriter:
        writers.append(BackgroundWriter("test", capacity, on_error=errors.append, newest_wins=newest_wins))
        return writers[-1]

    yield writer
    assert all(writer.close(60) for writer in writers)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


async def test_jobs_are_done_in_the_order_in_which_they_came(make: Make) -> None:
    writer, done = make(), list[int]()
    for number in range(100):
        assert writer.submit(partial(done.append, number))
    assert await writer.flush(60)
    assert done == list(range(100))


async def test_the_loop_goes_on_while_a_job_hangs(make: Make, gate: Gate) -> None:
    writer = make(2)
    writer.submit(gate)
    await asyncio.to_thread(gate.begun.wait, 60)
    assert [writer.submit(print) for _ in range(4)] == [True, True, False, False]
    assert writer.dropped == 2
    assert not await writer.flush(0.01)


async def test_a_slot_writes_the_newest_once_it_can(make: Make, gate: Gate) -> None:
    writer, done = make(1, newest_wins=True), list[int]()
    writer.submit(gate)
    await asyncio.to_thread(gate.begun.wait, 60)
    assert all(writer.submit(partial(done.append, number)) for number in range(10))
    assert not await writer.flush(0.01)
    gate.open.set()
    assert await writer.flush(60)
    assert done == [9]
    assert writer.dropped == 0


async def test_a_job_that_raises_is_reported_and_ends_nothing(make: Make, errors: list[Exception]) -> None:
    writer, done = make(), list[int]()
    writer.submit(lambda: done.append(1 // 0))
    writer.submit(lambda: done.append(1))
    assert await writer.flush(60)
    assert done == [1]
    assert [type(error) for error in errors] == [ZeroDivisionError]


async def test_an_error_handler_that_raises_ends_nothing_either(make: Make) -> None:
    def worse(error: Exception) -> None:
        raise RuntimeError from error

    writer, done = BackgroundWriter("test", 10, on_error=worse), list[int]()
    writer.submit(lambda: done.append(1 // 0))
    writer.submit(lambda: done.append(1))
    assert writer.close(60)
    assert done == [1]


async def test_a_job_that_hangs_is_measured_from_when_it_was_begun(make: Make, gate: Gate) -> None:
    writer = make()
    assert writer.stalled_for(boottime() + 100) == 0
    writer.submit(gate)
    await asyncio.to_thread(gate.begun.wait, 60)
    writer.submit(print)
    assert writer.stalled_for(boottime() + 100) >= 100
    gate.open.set()
    assert await writer.flush(60)
    assert writer.stalled_for(boottime() + 100) == 0


def test_closing_does_what_waits_and_takes_no_more(make: Make) -> None:
    writer, done = make(), list[int]()
    for number in range(10):
        writer.submit(partial(done.append, number))
    assert writer.close(60)
    assert done == list(range(10))
    assert not writer.submit(print)


def test_closing_gives_up_on_a_job_that_hangs(make: Make, gate: Gate) -> None:
    writer = make()
    writer.submit(gate)
    assert gate.begun.wait(60)
    assert not writer.close(0.01)


def test_a_job_may_submit_another_job(make: Make) -> None:
    writer, done = make(), threading.Event()

    def first() -> None:
        writer.submit(done.set)

    writer.submit(first)
    assert done.wait(60)
