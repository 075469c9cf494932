"""Responses that their clients have not taken yet: bounded over all connections together."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

UNSENT_MOST = 8 << 20
"""Bytes: some thirty pages of a node with 8 GPUs."""
RESPONSES_LEAST = 16
"""As many fit whatever their size: a page of 16 GPUs with 112 MIG instances has 1.3 MB, and clients that ask at the same moment have taken
nothing yet."""
TRIM_AFTER = 30.0
"""Seconds from the first connection that an overload ends until the memory that it took is given back. Chosen, not measured: three times
the 10 s in which a client must take its response, so that nothing of the overload is in use by then."""


@dataclass(slots=True)
class _Held:
    """`left`: bytes in the buffer of its transport when it was last read. `moved`: the turn in which that last became less."""

    transport: asyncio.WriteTransport
    size: int
    left: int
    moved: int


class Unsent:
    """`turned_away`: connections ended because they had taken nothing for longest while others needed the room."""

    def __init__(self, most: int = UNSENT_MOST) -> None:
        self.turned_away = 0
        self.bytes = 0
        self._most = most
        self._turn = 0
        self._held: dict[object, _Held] = {}
        self._trimming: asyncio.TimerHandle | None = None

    @contextmanager
    def sending(self, transport: asyncio.BaseTransport | None, size: int) -> Iterator[None]:
        """Until the response is taken, or its connection has ended. Room is made by clients that take nothing, not by slow ones."""
        if not isinstance(transport, asyncio.WriteTransport):  # the client is gone
            yield
            return
        key = object()
        self._turn += 1
        while self._held and self.bytes + size > max(self._most, RESPONSES_LEAST * size):
            self._end_one()
        self._held[key] = _Held(transport, size, size, self._turn)
        self.bytes += size
        try:
            yield
        finally:
            self._forget(key)

    def _end_one(self) -> None:
        for held in self._held.values():
            left = held.transport.get_write_buffer_size()
            if left < held.left:
                held.left, held.moved = left, self._turn
        key = min(self._held, key=lambda each: self._held[each].moved)
        transport = self._held[key].transport
        self._forget(key)
        self.turned_away += 1
        transport.abort()
        if self._trimming is None:
            self._trimming = asyncio.get_running_loop().call_later(TRIM_AFTER, self._trim)

    def _trim(self) -> None:
        """First what only refers to itself, as requests and their connections do; then the pieces that the allocator keeps between what
        is in use. Of Python's own arenas those stay in which a pass has put something meanwhile.
        """
        import ctypes  # noqa: PLC0415 - 1 MiB that a daemon without overload does not need

        self._trimming = None
        gc.collect()
        with suppress(AttributeError):  # a C library without it
            ctypes.CDLL(None).malloc_trim(0)

    def _forget(self, key: object) -> None:
        held = self._held.pop(key, None)
        if held is not None:
            self.bytes -= held.size
