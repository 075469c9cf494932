"""One client of the interposer, and its own connection to the shim: bytes pass unchanged.

Requests and responses are parsed only to find where a request for the health of this host begins, and when it may be
answered: after all requests before it. What cannot be parsed is passed on, and nothing after it on that connection is
answered here. Without a shim the connection closes, as if no process listened: dstack deploys its shim by polling until
a response comes, and takes any response for the shim's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from gpuwarden.features.dstack.framing import HEAD_MOST, Head, Incoming, NotHttp, Outgoing

SIZE = 16 << 10
"""Bytes read at once, and buffered for a slow receiver; twice that in a reader (asyncio pauses it there)."""
_AWAITED_MOST = 64  # requests in transit before the first is answered

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Responder(Protocol):
    """Replaces responses of the shim. `patience`: seconds that the shim has to respond first; `most`: bytes of its response."""

    patience: float
    most: int

    def answers(self, head: Head) -> bool: ...

    def answer(self, request: Incoming, shim: Outgoing | None) -> tuple[bytes, bool]:
        """Return the whole response, and whether the client may send another request on its connection. `shim` None: it
        did not respond in time. Raises nothing.
        """
        ...


@dataclass(slots=True)
class Replaced:
    """A request whose response is replaced. `shim`: the shim's response. `keeps`: the client may send another one."""

    request: Incoming
    shim: Outgoing
    answered: bool = False
    keeps: bool = False


class Link:
    """A client's connection, and the connection to the shim for it.

    `connect` to the shim may raise OSError. `requested`: at least one request came.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        responder: Responder,
        connect: Callable[[], Awaitable[Streams]],
    ) -> None:
        self.requested = False
        self._reader = reader
        self._writer = writer
        self._responder = responder
        self._connect = connect
        self._shim: asyncio.StreamWriter | None = None
        self._relaying: asyncio.Task[None] | None = None
        self._awaited: deque[Outgoing] = deque()
        self._quiet = asyncio.Event()  # the shim owes no response
        self._quiet.set()
        self._taking = False  # a request has begun and is not passed on as a whole, or is answered here
        self._replaced: Replaced | None = None
        self._blind = False
        self._stopping = False

    @property
    def busy(self) -> bool:
        return self._taking or self._blind or not self._quiet.is_set()

    def stop(self) -> None:
        """Accept no further request. Requests in progress are answered, and so is a first request that is still to come."""
        self._stopping = True
        if self.requested and not self.busy:
            self._writer.close()

    def cut(self) -> None:
        for writer in filter(None, (self._writer, self._shim)):
            writer.transport.abort()

    async def run(self) -> None:
        """Relay until one side is gone. Raises nothing but its cancellation."""
        try:
            with contextlib.suppress(OSError):
                await self._serve_client()
                await self._last_responses()
        finally:
            if self._relaying is not None:
                self._relaying.cancel()
            for writer in filter(None, (self._writer, self._shim)):
                writer.close()

    # --- from the client

    async def _serve_client(self) -> None:
        rest = b""
        while not self._blind and not (self._stopping and self.requested):
            request, raw, rest = await self._begin(rest)
            if not raw:
                return
            self._taking = self.requested = True
            head = request.head
            if head is not None and self._responder.answers(head):
                rest, more = await self._answered(head, request, raw, rest)
                if not more:
                    return
            else:
                rest = await self._pass_on(request, raw, rest)
            self._taking = False
        if self._blind:
            await self._pass_all(rest)

    async def _begin(self, data: bytes) -> tuple[Incoming, bytes, bytes]:
        """Return a request up to the end of its head at least, its bytes, and those after it. No bytes: none came."""
        request, raw = Incoming(), b""
        while True:
            data = data or await self._reader.read(SIZE)
            if not data:
                return request, b"", b""
            try:
                rest = request.feed(data)
            except NotHttp:
                self._blind = True
                return request, raw + data, b""
            raw += data[: len(data) - len(rest)]
            if request.head is not None:
                return request, raw, rest
            self._taking, data = True, b""

    async def _pass_on(self, request: Incoming, raw: bytes, rest: bytes) -> bytes:
        shim = await self._to_shim()
        if request.head is not None and not self._blind:
            self._expect_response_to(request.head)
        shim.write(raw)
        while not (request.complete or self._blind):
            await shim.drain()
            data = await self._reader.read(SIZE)
            if not data:
                break
            try:
                rest = request.feed(data)
            except NotHttp:
                self._go_blind()
            shim.write(data[: len(data) - len(rest)])
        await shim.drain()
        if request.wants_more or len(self._awaited) >= _AWAITED_MOST:
            await self._quiet.wait()
        return rest

    async def _pass_all(self, rest: bytes) -> None:
        shim = await self._to_shim()
        data = rest
        while data or (data := await self._reader.read(SIZE)):
            shim.write(data)
            await shim.drain()
            data = b""

    async def _answered(self, head: Head, request: Incoming, raw: bytes, rest: bytes) -> tuple[bytes, bool]:
        """Answer a request here. Returns the bytes after it, and whether there may be another request."""
        while not request.complete and len(raw) < HEAD_MOST:
            data = await self._reader.read(SIZE)
            if not data:
                return b"", False
            try:
                rest = request.feed(data)
            except NotHttp:
                return b"", False
            raw += data[: len(data) - len(rest)]
        await self._quiet.wait()
        if not request.complete or self._blind:
            return await self._pass_on(request, raw, rest), True
        self._replaced = Replaced(request, Outgoing(head, collect=True))
        try:
            return rest, await self._replace(self._replaced, raw)
        finally:
            self._replaced = None

    async def _replace(self, replaced: Replaced, raw: bytes) -> bool:
        """Respond once the shim has, or has not in time. Returns whether there may be another request."""
        try:
            end = asyncio.get_running_loop().time() + self._responder.patience
            shim = self._shim
            if shim is None:
                async with asyncio.timeout_at(end):
                    shim = await self._to_shim()
            self._awaited.append(replaced.shim)
            self._quiet.clear()
            shim.write(raw)
            timer = asyncio.get_running_loop().call_at(end, self._quiet.set)
            await self._quiet.wait()
            timer.cancel()
        except (OSError, TimeoutError):
            pass
        if not replaced.answered:
            self._leave_shim()
            self._answer(replaced, None)
        await self._writer.drain()
        return replaced.keeps

    def _answer(self, replaced: Replaced, shim: Outgoing | None) -> None:
        response, replaced.keeps = self._responder.answer(replaced.request, shim)
        replaced.answered = True
        self._writer.write(response)

    def _leave_shim(self) -> None:
        """Drop the connection to the shim, with data that is not needed. The next request gets a new one."""
        if self._relaying is not None:
            self._relaying.cancel()
        if self._shim is not None:
            self._shim.transport.abort()
        self._relaying = self._shim = None
        self._awaited.clear()
        self._quiet.set()

    async def _last_responses(self) -> None:
        """Wait for the last responses: the client sends no more, or must not, but may still read."""
        if self._relaying is None or not self.busy:
            return
        if not self._stopping and self._shim is not None and self._shim.can_write_eof():
            self._shim.write_eof()
        if self._blind:
            await asyncio.wait((self._relaying,))
        else:
            await self._quiet.wait()
            await self._writer.drain()

    # --- from the shim

    async def _to_shim(self) -> asyncio.StreamWriter:
        """Return the connection to the shim, made at the first call. Raises OSError if the shim cannot be reached."""
        if self._shim is None:
            reader, self._shim = await self._connect()
            self._relaying = asyncio.create_task(self._relay(reader))
        return self._shim

    async def _relay(self, reader: asyncio.StreamReader) -> None:
        try:
            while data := await reader.read(SIZE):
                if self._replaced is not None:
                    self._collect(self._replaced, data)
                    continue
                self._writer.write(data)
                if not self._blind:
                    self._follow(data)
                await self._writer.drain()
        except OSError:
            self._ended(cut=True)
        else:
            self._ended()

    def _ended(self, *, cut: bool = False) -> None:
        """Handle that the shim has closed. A replaced response is still sent."""
        if self._replaced is not None:
            if not self._replaced.answered:
                self._collect(self._replaced, b"")
            if self._shim is not None:
                self._shim.transport.abort()
            self._relaying = self._shim = None
        elif cut:
            self.cut()
        else:
            self._writer.close()  # pending data is still written
        self._quiet.set()

    def _collect(self, replaced: Replaced, data: bytes) -> None:
        """Collect the response to be replaced.

        One that cannot be parsed, or is too large, is left to the waiting task, which drops the connection.
        """
        shim = replaced.shim
        if replaced.answered or shim.size > self._responder.most:
            return
        with contextlib.suppress(*NotHttp):
            shim.feed(data)
            if shim.complete:
                self._awaited.clear()
                self._answer(replaced, shim)
            elif not shim.switched and shim.size <= self._responder.most:
                return
        self._quiet.set()

    def _expect_response_to(self, head: Head) -> None:
        self._awaited.append(Outgoing(head))
        self._quiet.clear()

    def _follow(self, data: bytes) -> None:
        while data and self._awaited:
            response = self._awaited[0]
            try:
                data = response.feed(data)
            except NotHttp:
                self._go_blind()
                return
            if response.switched:
                self._go_blind()
            elif response.complete:
                self._awaited.popleft()
            else:
                return
        if not self._awaited:
            self._quiet.set()
            if self._stopping and not self._taking:
                self._writer.close()

    def _go_blind(self) -> None:
        self._blind = True
        self._awaited.clear()
        self._quiet.set()
