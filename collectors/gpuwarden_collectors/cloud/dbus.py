"""A client of the D-Bus system bus: calls with a time limit, subscribed signals, file descriptors in replies.

jeepney encodes and decodes messages. This module reads the socket itself, because jeepney's asyncio connection does
not support file descriptors. No call blocks, and memory is bounded: of an unexpected message only the header is
parsed, and an oversized message ends the connection.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import struct
from collections import deque
from typing import Any

from jeepney import DBusErrorResponse, HeaderFields, MatchRule, Message, message_bus
from jeepney.auth import BEGIN, AuthenticationError, Authenticator
from jeepney.fds import FileDescriptor, fds_buf_size
from jeepney.low_level import Header, calc_msg_size
from jeepney.wrappers import unwrap_msg

from gpuwarden_collectors.cloud.system_bus import BusError

MESSAGE_MOST = 64 * 1024
"""Largest accepted message in bytes. Replies of logind have hundreds."""
_HEAD = 16
_SIGNALS_MOST = 64
_UNREADABLE = (ValueError, LookupError, TypeError, AssertionError, RecursionError, struct.error)
"""Errors that jeepney raises for a message that violates the specification, or has a newer header field."""


class Bus:
    """A connection to a bus, made by `connect` and used by one task at a time.

    `timeout` is in seconds, for each step.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._data = bytearray()  # the bytes so far of the message being received
        self._fds: list[FileDescriptor] = []  # descriptors received with it
        self._serials = itertools.count(1)
        self._member = ""
        self._signals: deque[Message] = deque(maxlen=_SIGNALS_MOST)

    @classmethod
    async def connect(cls, path: str, timeout: float = 5.0) -> Bus:  # noqa: ASYNC109 - of each step from now on
        """Connects to the bus whose socket is at `path`. Raises BusError."""
        bus = cls(timeout)
        try:
            async with asyncio.timeout(timeout):
                await bus._begin(path)
            await bus.call(message_bus.Hello(), "s")
        except (OSError, AuthenticationError, BusError) as error:
            bus.close()
            raise BusError(f"the bus at {path} cannot be used: {error or 'no answer'}") from error
        return bus

    async def _begin(self, path: str) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self._socket, path)
        authenticator = Authenticator(enable_fds=True)
        for line in authenticator:
            await loop.sock_sendall(self._socket, line)
            answer = await loop.sock_recv(self._socket, 512)
            if not answer:
                raise ConnectionError("it closed the connection")
            authenticator.feed(answer)
        await loop.sock_sendall(self._socket, BEGIN)

    async def call(self, message: Message, signature: str = "") -> tuple[Any, ...]:
        """Calls a method and returns the values of its reply. The caller owns the descriptors among them.

        `signature` is the expected signature of the reply.

        Raises BusError.
        """
        member, serial = message.header.fields[HeaderFields.member], next(self._serials)
        try:
            async with asyncio.timeout(self._timeout):
                await asyncio.get_running_loop().sock_sendall(self._socket, message.serialise(serial))
                while (reply := await self._receive(serial)) is None:
                    pass
            values: tuple[Any, ...] = unwrap_msg(reply)
            if reply.header.fields.get(HeaderFields.signature, "") != signature:
                raise BusError(f"{member}: its answer has other types than {signature!r}")
        except DBusErrorResponse as error:
            text = error.data[0] if error.data and isinstance(error.data[0], str) else ""
            raise BusError(f"{member}: {error.name}: {text}"[:200]) from error
        except OSError as error:
            raise BusError(f"{member}: {error or f'no answer within {self._timeout:g} s'}") from error
        return values

    async def subscribe(self, rule: MatchRule) -> None:
        """Subscribes to a signal that carries one boolean. Raises BusError."""
        self._member = rule.header_fields["member"]
        await self.call(message_bus.AddMatch(rule))

    async def signal(self, seconds: float) -> Message | None:
        """Returns the next signal, or None after `seconds`. Any client of the bus may have sent it: check the sender.

        Raises BusError once the connection is lost.
        """
        try:
            async with asyncio.timeout(seconds):
                while not self._signals:
                    await self._receive()
        except TimeoutError:
            return None
        except OSError as error:
            raise BusError(f"the bus is gone: {error}") from error
        return self._signals.popleft()

    def close(self) -> None:
        self._socket.close()
        _close(self._fds)

    async def _receive(self, serial: int = 0) -> Message | None:
        """Receives one message and returns it if it is the reply to `serial`. Raises OSError.

        Keeps a signal of the subscribed member for later; drops every other message.
        """
        while (missing := self._missing()) > 0:
            await self._readable()
            data, ancillary, _, _ = self._socket.recvmsg(missing, fds_buf_size(), socket.MSG_CMSG_CLOEXEC)
            self._fds += FileDescriptor.from_ancdata(ancillary)
            self._data += data
            if not data:
                raise ConnectionError("it closed the connection")
        data, fds = bytes(self._data), self._fds
        self._data, self._fds = bytearray(), []
        try:
            header, _ = Header.from_buffer(data)
            if serial and header.fields.get(HeaderFields.reply_serial) == serial:
                reply = Message.from_buffer(data, fds)
                fds = [descriptor for descriptor in fds if descriptor not in reply.body]
                return reply
            types = header.fields.get(HeaderFields.signature)
            if header.fields.get(HeaderFields.member) == self._member and types == "b":
                self._signals.append(Message.from_buffer(data))
        except _UNREADABLE:
            pass  # a caller that waits for it times out
        finally:
            _close(fds)
        return None

    def _missing(self) -> int:
        """Bytes missing from this message, or from its header, which contains the length. Raises ConnectionError."""
        if len(self._data) < _HEAD:
            return _HEAD - len(self._data)
        try:
            size = int(calc_msg_size(self._data))
        except _UNREADABLE as error:
            raise ConnectionError("it sends data that is not a D-Bus message") from error
        if size > MESSAGE_MOST:
            raise ConnectionError(f"it sends a message of {size} bytes")
        return size - len(self._data)

    async def _readable(self) -> None:
        """Waits until the socket is readable.

        Always yields to the event loop, so that a flooding peer does not starve other tasks.
        """
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(self._socket, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self._socket)


def _close(fds: list[FileDescriptor]) -> None:
    for descriptor in fds:
        descriptor.close()
