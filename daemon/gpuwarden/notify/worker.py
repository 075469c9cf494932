"""The delivery worker of one receiver: message after message, each until it is delivered, refused for good, or dropped for room.

Idle while the queue is empty. A failed delivery is tried again after 1 s, doubling up to 5 minutes, by
chance somewhat sooner, so that a fleet does not come back in step; a longer Retry-After, up to 5 minutes too, is honoured.
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
from gpuwarden_collectors.backoff import Backoff

log = get_logger()

FIRST, MOST = 1.0, 300.0  # seconds
RECHECK = 60.0
"""Seconds between reads of a queue that cannot be read from disk: it may hold messages."""
AT_ONCE = 100
"""Messages that are read from the queue in one go."""


@dataclass(slots=True)
class DeliveryState:
    """What came of the deliveries to one receiver."""

    counts: Counter[Result] = field(default_factory=Counter)
    """Attempts by result since the start of the daemon."""
    barred: str = ""
    """Why nothing is delivered until an operator changes something; empty if nothing bars it."""
    error: str = ""
    """Why the last attempt failed; empty if it did not."""


class DeliveryWorker:
    def __init__(
        self, target: str, receiver: Receiver, store: QueueStore, *, first: float = FIRST, most: float = MOST,
        recheck: float = RECHECK,
    ) -> None:  # fmt: skip
        self.target = target
        self.state = DeliveryState()
        self.wake = asyncio.Event()
        self._receiver = receiver
        self._store = store
        self._recheck = recheck
        self._chance = random.Random()  # noqa: S311 - spreads load, guards nothing
        self._backoff = Backoff(first, most, spread=(0.5, 1.0), chance=self._chance)

    async def run(self) -> None:
        """For ever, until cancelled."""
        try:
            while True:
                await self._turn()
        finally:
            self._receiver.release()

    async def _turn(self) -> None:
        self.wake.clear()
        waiting = await self._store.head(self.target, AT_ONCE)
        if not waiting:
            self._receiver.release()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._recheck if self._store.error else None):
                    await self.wake.wait()
        for one in waiting:
            if not await self._deliver(one):
                return  # it was dropped for room meanwhile: read the queue again

    async def _deliver(self, one: Waiting) -> bool:
        """Until it is settled. False if it was dropped for room during a pause."""
        again = False
        while True:
            delivery = await self._receiver.deliver(one.message, again=again)
            self._count(delivery)
            if delivery.settled:
                self._backoff.succeeded()
                self._store.done(self.target, one)
                return True
            self._receiver.release()
            await asyncio.sleep(self._pause(delivery))
            again = True
            first = await self._store.head(self.target, 1)
            if not first or first[0].id != one.id:
                return False

    def _count(self, delivery: Delivery) -> None:
        state, before = self.state, (self.state.barred, self.state.error)
        state.counts[delivery.result] += 1
        state.barred = delivery.text if delivery.result is Result.BARRED else ""
        state.error = "" if delivery.settled else delivery.text
        if delivery.result is Result.REFUSED or (state.error and (state.barred, state.error) != before):
            log.warning(
                "notification not delivered", target=self.target, result=delivery.result.value, why=delivery.text
            )

    def _pause(self, delivery: Delivery) -> float:
        """Seconds."""
        return max(self._backoff.failed(), delivery.after * self._chance.uniform(1.0, 1.25))
