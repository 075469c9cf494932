"""A check of the doctor."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

from gpuwarden.base.threads import detached
from gpuwarden.config.model import Config
from gpuwarden.doctor.row import Row
from gpuwarden.doctor.running import Running
from gpuwarden_collectors.dataclass import dataclass

HOST_WITHIN = 10.0
Asking = Callable[[Running, Config], Awaitable[list[Row]]]


@dataclass(frozen=True, slots=True)
class Check:
    """A check: the function that returns its rows, its deadline in seconds, and the area of its rows."""

    rows: Asking
    within: float = HOST_WITHIN
    area: str = "host"


def in_loop(check: Callable[[Config], Awaitable[list[Row]]]) -> Asking:
    return lambda _, config: check(config)


def in_thread(check: Callable[[Config], Iterator[Row]]) -> Asking:
    return lambda _, config: threaded(lambda: list(check(config)))


def in_thread_with(check: Callable[[Running, Config], Iterator[Row]]) -> Asking:
    return lambda daemon, config: threaded(lambda: list(check(daemon, config)))


async def threaded(check: Callable[[], list[Row]]) -> list[Row]:
    return await detached("doctor", check)
