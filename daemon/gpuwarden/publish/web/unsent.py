"""Responses that their clients have not taken yet: their memory is bounded over all connections together.

A body that several responses share, as all scrapes of one pass do, counts once; each response counts with the piece that its connection holds.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from gpuwarden.publish.web.response import PIECE
from gpuwarden.publish.web.trimming import Trimming
from gpuwarden_collectors.dataclass import dataclass

UNSENT_MOST = 8 << 20
"""Bytes: six pages of a node with 48 GPUs, with a piece for each of 20 connections."""
RESPONSES_LEAST = 16
"""Responses that fit whatever their size, also where each has a body of its own: clients that ask at the same moment have taken nothing yet."""


@dataclass(eq=False, slots=True)
class Sending:
    """A response on its way.

    `left`: bytes in the buffer of its transport when it was last read. `moved`: the turn in which the client last took some.
    """

    transport: asyncio.WriteTransport
    body: bytes
    left: int
    moved: int
    turns: Unsent

    def took(self) -> None:
        """The client has taken a piece."""
        self.left, self.moved = PIECE, self.turns.turn


class Unsent:
    """The responses that are not taken yet.

    `turned_away` counts connections that were ended to make room, those that had taken nothing for longest.
    """

    def __init__(self, trimming: Trimming, most: int = UNSENT_MOST) -> None:
        self.turned_away = 0
        self.bytes = 0
        self.turn = 0
        self._most = most
        self._sending: set[Sending] = set()
        self._bodies: Counter[int] = Counter()  # responses by the identity of their body
        self._trimming = trimming

    def __len__(self) -> int:
        """The responses that are being sent."""
        return len(self._sending)

    @contextmanager
    def sending(self, transport: asyncio.BaseTransport | None, body: bytes) -> Iterator[Sending | None]:
        """Counts a response until the client has taken it or its connection has ended; yields None if the client has left.

        Room is made by aborting clients that do not read, not slow ones.
        """
        if not isinstance(transport, asyncio.WriteTransport):
            yield None
            return
        self.turn += 1
        while self._sending and self.bytes + self._added_by(body) > max(self._most, RESPONSES_LEAST * len(body)):
            self._end_one()
        sending = Sending(transport, body, PIECE, self.turn, self)
        self.bytes += self._added_by(body)
        self._sending.add(sending)
        self._bodies[id(body)] += 1
        try:
            yield sending
        finally:
            self._forget(sending)

    def _added_by(self, body: bytes) -> int:
        return min(PIECE, len(body)) + (0 if self._bodies[id(body)] else len(body))

    def _end_one(self) -> None:
        for sending in self._sending:
            left = sending.transport.get_write_buffer_size()
            if left < sending.left:
                sending.left, sending.moved = left, self.turn
        stuck = min(self._sending, key=lambda each: each.moved)
        self._forget(stuck)
        self.turned_away += 1
        stuck.transport.abort()
        self._trimming.later()

    def _forget(self, sending: Sending) -> None:
        if sending in self._sending:
            self._sending.remove(sending)
            self._bodies[id(sending.body)] -= 1
            self._bodies += Counter()  # drops those that nobody sends any more
            self.bytes -= self._added_by(sending.body)
