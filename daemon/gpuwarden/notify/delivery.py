"""What can come of telling somebody something once."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from gpuwarden.notify.queue import Message


class Result(StrEnum):
    DELIVERED = "delivered"
    REFUSED = "refused"  # this message, for good: it is not told again
    BARRED = "barred"  # every message, until a person changes something: it is kept
    LATER = "later"


@dataclass(frozen=True, slots=True)
class Delivery:
    """`text` is for people, and holds no secret. `after`: seconds that whoever was told asks us to wait; 0 if it does not."""

    result: Result
    text: str = ""
    after: float = 0.0

    @property
    def settled(self) -> bool:
        """There is nothing more to do about the message."""
        return self.result in (Result.DELIVERED, Result.REFUSED)


DELIVERED = Delivery(Result.DELIVERED)


class Receiver(Protocol):
    """Each call has its own deadline and raises nothing. `again`: this message was tried before, and may have been taken."""

    async def deliver(self, message: Message, *, again: bool) -> Delivery: ...

    def rest(self) -> None:
        """There is nothing to be told for now."""
