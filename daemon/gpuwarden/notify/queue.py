"""A bounded in-memory queue for one receiver. Messages undelivered at a stop are lost; lasting states are resent
after the next start (`resend.py`).

If it is full, only the newest message of each subject is kept; if that is not enough, the oldest are dropped.
"""

from __future__ import annotations

from collections import deque

from gpuwarden_collectors.dataclass import dataclass

MESSAGES_MOST = 1_000
BYTES_MOST = 1 << 20
"""Bytes of the bodies of all messages of one receiver."""


@dataclass(frozen=True, slots=True)
class Message:
    """A notification."""

    subject: str
    """What the message is about; the newest message of a subject is its current state."""
    key: str
    """The message's id: the same for every attempt to deliver it, including after a restart."""
    body: str
    """JSON in ASCII."""


class MessageQueue:
    """Messages in the order in which they were put."""

    def __init__(self, *, messages_most: int = MESSAGES_MOST, bytes_most: int = BYTES_MOST) -> None:
        self.dropped = 0
        """Messages that were removed undelivered."""
        self._messages: deque[Message] = deque()
        self._bytes = 0
        self._messages_most, self._bytes_most = messages_most, bytes_most

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, message: Message) -> None:
        self._messages.append(message)
        self._bytes += len(message.body)
        if self._is_full():
            self.drop_superseded()
        while self._is_full():
            self._bytes -= len(self._messages.popleft().body)
            self.dropped += 1

    def head(self) -> Message | None:
        """Return the oldest message without removing it."""
        return self._messages[0] if self._messages else None

    def done(self, message: Message) -> None:
        """Remove `message` if it is still the head: it may have been dropped during its delivery."""
        if self._messages and self._messages[0] is message:
            self._messages.popleft()
            self._bytes -= len(message.body)

    def postpone(self, message: Message) -> None:
        """Move `message` to the end of the queue if it is the head."""
        if self.head() is message:
            self._messages.rotate(-1)

    def drop_superseded(self) -> None:
        """Drop every message with a later one of the same subject."""
        newest = {message.subject: message for message in self._messages}
        kept = deque(message for message in self._messages if newest[message.subject] is message)
        self.dropped += len(self._messages) - len(kept)
        self._messages, self._bytes = kept, sum(len(message.body) for message in kept)

    def _is_full(self) -> bool:
        return len(self._messages) > self._messages_most or self._bytes > self._bytes_most
