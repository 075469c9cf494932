"""A connection to the system bus: calls with a time limit, signals that were asked for, and descriptors that come with replies.

Nothing here blocks, and nobody's message makes it grow: what is not waited for is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import deque
from typing import Any

from gpuwarden_collectors.cloud import dbus_wire as wire
from gpuwarden_collectors.cloud.dbus_wire import Message, WireError

_BUS = ("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus")
_SIGNALS_MOST = 64
_FDS_MOST = 4


class BusError(Exception):
    """The bus is not there, does not answer, or refuses. The message says what was wanted of it."""


class Bus:
    """`path` of its socket; `timeout` in seconds, for each step. Made by `connect`."""

    def __init__(self, path: str, timeout: float) -> None:
        self._path = path
        self._timeout = timeout
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._data = bytearray()
        self._fds: deque[int] = deque()
        self._serial = 0
        self._waiting: dict[int, asyncio.Future[Message]] = {}
        self._signals: deque[Message] = deque(maxlen=_SIGNALS_MOST)
        self._news = asyncio.Event()
        self._broken = ""

    @classmethod
    async def connect(cls, path: str, timeout: float = 5.0) -> Bus:  # noqa: ASYNC109 - of each step from now on
        """Raises BusError."""
        bus = cls(path, timeout)
        try:
            async with asyncio.timeout(timeout):
                await bus._begin()
            await bus.call(*_BUS, "Hello")
        except (OSError, TimeoutError, BusError) as error:
            bus.close()
            raise BusError(f"the bus at {path} cannot be used: {error or 'no answer'}") from error
        return bus

    async def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self._socket, self._path)
        user = str(os.geteuid()).encode().hex()
        for line in (f"\0AUTH EXTERNAL {user}\r\n", "NEGOTIATE_UNIX_FD\r\n"):
            await loop.sock_sendall(self._socket, line.encode())
            told = b""
            while not told.endswith(b"\r\n") and len(told) < 512:
                more = await loop.sock_recv(self._socket, 512)
                if not more:
                    break
                told += more
            if not told.startswith((b"OK ", b"AGREE_UNIX_FD")):
                raise BusError(f"it says {told[:80]!r}")
        await loop.sock_sendall(self._socket, b"BEGIN\r\n")
        loop.add_reader(self._socket, self._receive)

    async def call(
        self, destination: str, path: str, interface: str, member: str, signature: str = "", *values: Any
    ) -> Message:
        """The reply. Raises BusError."""
        if self._broken:
            raise BusError(self._broken)
        loop = asyncio.get_running_loop()
        self._serial += 1
        serial, reply = self._serial, loop.create_future()
        self._waiting[serial] = reply
        try:
            async with asyncio.timeout(self._timeout):
                await loop.sock_sendall(
                    self._socket, wire.call(serial, destination, path, interface, member, signature, values)
                )
                message: Message = await reply
        except (OSError, TimeoutError) as error:
            raise BusError(f"{member}: {error or f'no answer within {self._timeout:g} s'}") from error
        finally:
            del self._waiting[serial]
        if message.kind == wire.ERROR:
            text = message.body[0] if message.body and isinstance(message.body[0], str) else ""
            raise BusError(f"{member}: {message.error}: {text}"[:200])
        return message

    async def subscribe(self, rule: str) -> None:
        await self.call(*_BUS, "AddMatch", "s", rule)

    async def owner(self, name: str) -> str:
        """Who has this name now. Raises BusError."""
        reply = await self.call(*_BUS, "GetNameOwner", "s", name)
        return str(reply.body[0]) if reply.body else ""

    async def signal(self, member: str, seconds: float) -> Message | None:
        """The next one of this name, or None after so many seconds. Raises BusError once the connection is lost."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    while self._signals:
                        if (message := self._signals.popleft()).member == member:
                            return message
                    if self._broken:
                        raise BusError(self._broken)
                    self._news.clear()
                    await self._news.wait()
        return None

    def descriptor(self) -> int | None:
        """The one that came with the last reply; it is the caller's now."""
        return self._fds.popleft() if self._fds else None

    def close(self) -> None:
        self._fail("the connection is closed")
        self._socket.close()
        while self._fds:
            os.close(self._fds.popleft())

    def _receive(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._socket, 64 * 1024, _FDS_MOST)
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(f"the bus is gone: {error}")
            return
        for number in fds:
            os.set_inheritable(number, False)
            self._fds.append(number)
        while len(self._fds) > _FDS_MOST:
            os.close(self._fds.popleft())
        if not data:
            self._fail("the bus closed the connection")
            return
        self._data += data
        try:
            self._take_messages()
        except WireError as error:
            self._fail(f"the bus sent what cannot be read: {error}")

    def _take_messages(self) -> None:
        while len(self._data) >= wire.HEAD and len(self._data) >= (size := wire.length(bytes(self._data[: wire.HEAD]))):
            message = wire.unpack(bytes(self._data[:size]))
            del self._data[:size]
            waiting = self._waiting.get(message.reply_to) if message.kind != wire.SIGNAL else None
            if waiting is not None and not waiting.done():
                waiting.set_result(message)
            elif message.kind == wire.SIGNAL:
                self._signals.append(message)
                self._news.set()

    def _fail(self, why: str) -> None:
        self._broken = self._broken or why
        if self._socket.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._socket)
        for reply in self._waiting.values():
            if not reply.done():
                reply.set_exception(OSError(self._broken))
        self._news.set()
