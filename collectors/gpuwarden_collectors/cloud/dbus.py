"""A connection to the system bus: calls with a time limit, signals that were asked for, and descriptors that come with replies.

Messages are jeepney's. The socket is read here, since jeepney's connection for asyncio passes no descriptors. Nothing blocks, and
nobody's message makes it grow: of one that is not waited for only the header is read, and a long one ends the connection.
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
"""Bytes. Replies of logind have hundreds."""
_HEAD = 16
_SIGNALS_MOST = 64
_UNREADABLE = (ValueError, LookupError, TypeError, AssertionError, RecursionError, struct.error)
"""What jeepney raises for a message against the specification, or with a header field of a later one."""


class Bus:
    """A connection to a bus, made by `connect` and used by one task at a time.

    `timeout` is in seconds, for each step.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._data = bytearray()  # of the message that is being read, and of no other
        self._fds: list[FileDescriptor] = []  # which came with it
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
        """Returns the values of the reply, which must have this signature; the caller owns any descriptor among them.

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
        """Subscribes to the signals of one member, whose value is one boolean. Raises BusError."""
        self._member = rule.header_fields["member"]
        await self.call(message_bus.AddMatch(rule))

    async def signal(self, seconds: float) -> Message | None:
        """Returns the next signal, or None after so many seconds. Its sender may be anybody.

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
            pass  # who waits for it waits in vain
        finally:
            _close(fds)
        return None

    def _missing(self) -> int:
        """Bytes still missing of this message, or of its head, which gives its length. Raises ConnectionError."""
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

        It always passes through the event loop, so that a flooding peer blocks no other task.
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
