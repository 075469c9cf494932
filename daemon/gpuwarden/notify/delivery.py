"""The result of one delivery attempt."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from gpuwarden.notify.queue import Message
from gpuwarden_collectors.dataclass import dataclass


class Result(StrEnum):
    DELIVERED = "delivered"
    REFUSED = "refused"  # this message, for good: it is not sent again
    BARRED = "barred"  # every message, until a person changes something: it is kept
    LATER = "later"


@dataclass(frozen=True, slots=True)
class Delivery:
    """The result of one attempt."""

    result: Result
    text: str = ""
    """Why, for people; holds no secret."""
    after: float = 0.0
    """Seconds that the receiver asks to wait before the next attempt (Retry-After); 0 if it does not."""

    @property
    def settled(self) -> bool:
        """True if there is nothing more to do about the message."""
        return self.result in (Result.DELIVERED, Result.REFUSED)


DELIVERED = Delivery(Result.DELIVERED)


class Receiver(Protocol):
    """Delivers messages to one place.

    Each call has its own deadline and raises nothing. `again`: this message was tried before, and may have been taken.
    """

    async def deliver(self, message: Message, *, again: bool) -> Delivery: ...

    def release(self) -> None:
        """The queue is empty: close what is kept open."""
