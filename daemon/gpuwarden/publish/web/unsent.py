"""Bounds the memory of responses that clients have not taken yet, over all connections.

A body that responses share, such as all scrapes of one pass, counts once. Each response adds its connection's piece.
A body of one piece does not count: those of all connections (128) take 8 MiB at most, with what is buffered of them.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from gpuwarden.publish.web.response import PIECE
from gpuwarden.publish.web.trimming import Trimming
from gpuwarden_collectors.dataclass import dataclass

UNSENT_MOST = 8 << 20
"""Bytes: six pages of a node with 48 GPUs, and a piece for each of 20 connections."""
RESPONSES_LEAST = 16
"""Responses of any size, even without a shared body, that always fit: simultaneous clients have taken nothing yet."""


@dataclass(eq=False, slots=True)
class Sending:
    """A response being sent.

    `left`: bytes in the buffer of its transport at the last check. `moved`: turn of the last progress.
    """

    transport: asyncio.WriteTransport
    body: bytes
    left: int
    moved: int
    turns: Unsent

    def took(self) -> None:
        """Record that the client has taken a piece."""
        self.left, self.moved = PIECE, self.turns.turn


class Unsent:
    """The responses that are not taken yet.

    `turned_away` counts connections that were ended to make room, beginning with the longest inactive one.
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
        """Return the number of responses being sent."""
        return len(self._sending)

    def begin(self, transport: asyncio.BaseTransport | None, body: bytes) -> Sending | None:
        """Count a response, until `forget`. Return None if the client has left, or for a body of one piece.

        Make room by aborting clients that do not read, rather than slow ones.
        """
        if len(body) <= PIECE or not isinstance(transport, asyncio.WriteTransport):
            return None
        self.turn += 1
        added = self._added_by(body)
        while self._sending and self.bytes + added > max(self._most, RESPONSES_LEAST * len(body)):
            self._end_one()
            added = self._added_by(body)
        sending = Sending(transport, body, PIECE, self.turn, self)
        self.bytes += added
        self._sending.add(sending)
        self._bodies[id(body)] += 1
        return sending

    def forget(self, sending: Sending | None) -> None:
        """Count a response no longer: its client has taken it, or its connection has ended."""
        if sending is not None and sending in self._sending:
            self._sending.remove(sending)
            shared = self._bodies.pop(id(sending.body)) - 1
            if shared:
                self._bodies[id(sending.body)] = shared
            self.bytes -= self._added_by(sending.body)

    def _added_by(self, body: bytes) -> int:
        return min(PIECE, len(body)) + (0 if self._bodies[id(body)] else len(body))

    def _end_one(self) -> None:
        for sending in self._sending:
            left = sending.transport.get_write_buffer_size()
            if left < sending.left:
                sending.left, sending.moved = left, self.turn
        stuck = min(self._sending, key=lambda each: each.moved)
        self.forget(stuck)
        self.turned_away += 1
        stuck.transport.abort()
        self._trimming.later()
