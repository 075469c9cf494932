"""Collectors that read in threads, and when they do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from gpuwarden.collect.schedule import ThreadCollector, every
from gpuwarden_collectors.base import CollectorError, Observation, PassOutcome, SourceAbsent, host_clock
from support.threads import no_thread_can_be_started
from support.waiting import until


def raising(error: Exception) -> Callable[[], str]:
    def read() -> str:
        raise error

    return read


@pytest.mark.parametrize(
    ("read", "outcome", "error"),
    [
        (lambda: "facts", PassOutcome.OBSERVED, ""),
        (raising(SourceAbsent("no bus here")), PassOutcome.ABSENT, "no bus here"),
        (raising(CollectorError("permission denied")), PassOutcome.FAILED, "permission denied"),
        (raising(ZeroDivisionError("oops")), PassOutcome.FAILED, "ZeroDivisionError: oops"),
    ],
)
async def test_whatever_a_read_does_is_an_observation(
    read: Callable[[], str], outcome: PassOutcome, error: str
) -> None:
    seen = await ThreadCollector("pci", read, 10.0, host_clock).observe()
    assert (seen.outcome, seen.error) == (outcome, error)


async def test_a_read_that_hangs_costs_one_thread_and_is_picked_up_when_it_comes_back() -> None:
    release, reads = threading.Event(), []

    def read() -> str:
        reads.append(threading.current_thread())
        release.wait(60)
        return "late"

    collector = ThreadCollector("pci", read, 0.05, host_clock)
    outcomes = [(await collector.observe()).outcome for _ in range(3)]
    assert outcomes == [PassOutcome.TIMED_OUT] * 3
    await until(lambda: reads)
    assert len(reads) == 1
    release.set()
    while (seen := await collector.observe()).outcome is PassOutcome.TIMED_OUT:
        pass
    assert seen.facts == "late"


async def test_passes_fail_while_no_thread_can_be_started_and_go_on_after_that() -> None:
    seen: list[Observation[str]] = []
    collector = ThreadCollector("pci", lambda: "facts", 10.0, host_clock)
    with no_thread_can_be_started():
        task = asyncio.create_task(every(0.001, collector.observe, seen.append))
        async with asyncio.timeout(60):
            while len(seen) < 2 and not task.done():
                await asyncio.sleep(0.001)
    assert not task.done(), "the passes have ended for good"
    assert {(observation.outcome, observation.error) for observation in seen} == {
        (PassOutcome.FAILED, "RuntimeError: can't start new thread")
    }
    async with asyncio.timeout(60):
        while seen[-1].outcome is not PassOutcome.OBSERVED:
            await asyncio.sleep(0.001)
    task.cancel()


async def test_passes_of_a_collector_never_overlap() -> None:
    running = delivered = 0

    def read() -> int:
        nonlocal running
        running += 1
        assert running == 1
        running -= 1
        return running

    def deliver(observation: object) -> None:
        nonlocal delivered
        delivered += 1

    collector = ThreadCollector("pci", read, 10.0, host_clock)
    task = asyncio.create_task(every(0.001, collector.observe, deliver))
    while delivered < 20:
        await asyncio.sleep(0.001)
    task.cancel()


async def test_however_often_it_is_woken_the_next_pass_stays_due_when_it_was() -> None:
    delivered, wake = 0, asyncio.Event()

    def deliver(observation: object) -> None:
        nonlocal delivered
        delivered += 1

    collector = ThreadCollector("pci", lambda: "facts", 10.0, host_clock)
    task = asyncio.create_task(every(1.0, collector.observe, deliver, wake))
    for number in range(1, 100):
        while delivered < number:
            await asyncio.sleep(0)
        wake.set()
    while wake.is_set() or delivered < 100:
        await asyncio.sleep(0.001)
    async with asyncio.timeout(60):
        while delivered < 102:
            await asyncio.sleep(0.01)
    task.cancel()
