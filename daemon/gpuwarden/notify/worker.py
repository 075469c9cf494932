"""The delivery worker of one receiver. It sends message after message, each until it is delivered, refused or dropped.

A failed delivery is retried after 1 s, doubling up to 5 minutes, shortened at random by up to half so that the nodes of
a fleet do not retry in step. A longer Retry-After, up to 5 minutes, is honoured. While the receiver fails, only the
newest message of each subject is kept: after an outage it gets the current state, not an hour of history. A message
that fails `IN_A_ROW` times moves to the end of the queue, since it may be the only one that the receiver cannot take.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from dataclasses import field

from gpuwarden.base.log import get_logger
from gpuwarden.notify.delivery import Delivery, Receiver, Result
from gpuwarden.notify.queue import Message, MessageQueue
from gpuwarden_collectors.backoff import Backoff
from gpuwarden_collectors.dataclass import dataclass

log = get_logger()

FIRST, MOST = 1.0, 300.0  # seconds
IN_A_ROW = 6
"""Attempts, which take about half a minute: most outages are shorter and leave the order unchanged."""


@dataclass(slots=True)
class DeliveryState:
    """Counts and outcome of the deliveries to one receiver."""

    counts: Counter[Result] = field(default_factory=Counter)
    """Attempts by result since the start of the daemon."""
    barred: str = ""
    """Why nothing can be delivered until an operator changes something; empty if deliveries are possible."""
    error: str = ""
    """Why the last attempt failed; empty if it did not."""


class DeliveryWorker:
    def __init__(self, target: str, receiver: Receiver, *, first: float = FIRST, most: float = MOST) -> None:
        self.target = target
        self.state = DeliveryState()
        self.queue = MessageQueue()
        self._receiver = receiver
        self._changed = asyncio.Event()  # a message was queued, or `finish` was called
        self._finishing = asyncio.Event()
        self._tried: Message | None = None
        self._attempts = 0  # consecutive attempts for `_tried`
        self._chance = random.Random()  # noqa: S311 - spreads load; not for security
        self._backoff = Backoff(first, most, spread=(0.5, 1.0), chance=self._chance)

    def put(self, message: Message) -> None:
        self.queue.put(message)
        self._changed.set()

    def finish(self) -> None:
        """Make `run` return once the queue is empty or an attempt fails. Ends a pause after a failed attempt."""
        self._finishing.set()
        self._changed.set()

    async def run(self) -> None:
        """Deliver messages until `finish`, or until cancelled."""
        try:
            while True:
                message = self.queue.head()
                if message is not None:
                    if pause := await self._deliver(message):
                        if self._finishing.is_set():
                            return
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(pause):
                                await self._finishing.wait()
                elif self._finishing.is_set():
                    return
                else:
                    self._receiver.release()
                    self._changed.clear()
                    await self._changed.wait()
        finally:
            self._receiver.release()

    async def _deliver(self, message: Message) -> float:
        """Make one attempt. Return the seconds until the next; 0 if the message is settled."""
        delivery = await self._receiver.deliver(message, again=message is self._tried)
        self._count(delivery)
        if delivery.settled:
            self._backoff.succeeded()
            self.queue.done(message)
            return 0.0
        self._attempts = self._attempts % IN_A_ROW + 1 if message is self._tried else 1
        self._tried = message
        self._receiver.release()
        self.queue.drop_superseded()
        if self._attempts == IN_A_ROW and delivery.result is Result.LATER:
            self.queue.postpone(message)
        return max(self._backoff.failed(), delivery.after * self._chance.uniform(1.0, 1.25))

    def _count(self, delivery: Delivery) -> None:
        state, before = self.state, (self.state.barred, self.state.error)
        state.counts[delivery.result] += 1
        state.barred = delivery.text if delivery.result is Result.BARRED else ""
        state.error = "" if delivery.settled else delivery.text
        if delivery.result is Result.REFUSED or (state.error and (state.barred, state.error) != before):
            log.warning(
                "notification not delivered", target=self.target, result=delivery.result.value, why=delivery.text
            )
