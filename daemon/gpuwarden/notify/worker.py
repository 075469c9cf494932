"""One who is told: message after message, each until it is taken, refused for good, or had to make room.

Nothing runs while there is nothing to tell. Who cannot be reached is tried again after 1 s, doubling up to 5 minutes, by
chance somewhat sooner, so that a fleet does not come back in step; a wish to wait longer, up to 5 minutes too, is heeded.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from dataclasses import dataclass, field

from gpuwarden.base.log import get_logger
from gpuwarden.notify.delivery import Delivery, Receiver, Result
from gpuwarden.notify.queue import Waiting
from gpuwarden.notify.store import QueueStore

log = get_logger("gpuwarden")

FIRST, MOST = 1.0, 300.0  # seconds
LOOK_AGAIN = 60.0
"""Seconds after which a queue is looked at again that the disk does not give: there may be something in it."""
AT_ONCE = 100
"""Messages that are read from the queue in one go."""


@dataclass(slots=True)
class Told:
    """`counts` by result since the start; `barred`: why nothing is taken until a person changes something; `trouble`: why not now."""

    counts: Counter[Result] = field(default_factory=Counter)
    barred: str = ""
    trouble: str = ""


class Courier:
    def __init__(
        self, target: str, receiver: Receiver, store: QueueStore, *, first: float = FIRST, most: float = MOST,
        look_again: float = LOOK_AGAIN,
    ) -> None:  # fmt: skip
        self.target = target
        self.told = Told()
        self.wake = asyncio.Event()
        self._receiver = receiver
        self._store = store
        self._first, self._most, self._look_again = first, most, look_again
        self._failed = 0
        self._chance = random.Random()  # noqa: S311 - spreads load, guards nothing

    async def run(self) -> None:
        """For ever, until cancelled."""
        try:
            while True:
                await self._turn()
        finally:
            self._receiver.rest()

    async def _turn(self) -> None:
        self.wake.clear()
        waiting = await self._store.head(self.target, AT_ONCE)
        if not waiting:
            self._receiver.rest()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._look_again if self._store.trouble else None):
                    await self.wake.wait()
        for one in waiting:
            if not await self._tell(one):
                return  # it went to make room meanwhile: see what is there now

    async def _tell(self, one: Waiting) -> bool:
        """Until there is nothing more to do about it. False if it went while it had to wait."""
        again = False
        while True:
            delivery = await self._receiver.deliver(one.message, again=again)
            self._count(delivery)
            if delivery.settled:
                self._failed = 0
                self._store.done(self.target, one)
                return True
            self._receiver.rest()
            await asyncio.sleep(self._pause(delivery))
            again = True
            first = await self._store.head(self.target, 1)
            if not first or first[0].id != one.id:
                return False

    def _count(self, delivery: Delivery) -> None:
        told, before = self.told, (self.told.barred, self.told.trouble)
        told.counts[delivery.result] += 1
        told.barred = delivery.text if delivery.result is Result.BARRED else ""
        told.trouble = "" if delivery.settled else delivery.text
        if delivery.result is Result.REFUSED or (told.trouble and (told.barred, told.trouble) != before):
            log.warning(
                "a notification is not taken", target=self.target, result=delivery.result.value, why=delivery.text
            )

    def _pause(self, delivery: Delivery) -> float:
        """Seconds."""
        self._failed += 1
        longest = min(self._most, self._first * 2.0 ** min(self._failed - 1, 16))
        return max(longest * self._chance.uniform(0.5, 1.0), delivery.after * self._chance.uniform(1.0, 1.25))
