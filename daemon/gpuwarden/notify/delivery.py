"""The result of one delivery attempt."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from gpuwarden.notify.queue import Message
from gpuwarden_collectors.dataclass import dataclass


class Result(StrEnum):
    DELIVERED = "delivered"
    REFUSED = "refused"  # the receiver rejects this message for good: it is not sent again
    BARRED = "barred"  # no message can be delivered until an operator changes something: it is kept
    LATER = "later"


@dataclass(frozen=True, slots=True)
class Delivery:
    """The result of one attempt."""

    result: Result
    text: str = ""
    """The reason, for people; contains no secret."""
    after: float = 0.0
    """Seconds to wait before the next attempt, as the receiver requests (Retry-After); 0 without such a request."""

    @property
    def settled(self) -> bool:
        """True if no further attempt is needed."""
        return self.result in (Result.DELIVERED, Result.REFUSED)


DELIVERED = Delivery(Result.DELIVERED)


class Receiver(Protocol):
    """Delivers messages to one receiver.

    Each call has its own deadline and raises nothing. `again`: an earlier attempt was made, and may have succeeded.
    """

    async def deliver(self, message: Message, *, again: bool) -> Delivery: ...

    def release(self) -> None:
        """Close open connections, since the queue is empty or an attempt failed."""
