"""Finds where a message of HTTP/1.1 begins and ends. Its bytes are passed on unchanged: they are only parsed.

The plainest messages, which are nearly all, are parsed here in a tenth of the time; all others by h11. A message that
h11 rejects cannot be answered here, and is passed on as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import h11

HEAD_MOST = 64 << 10  # bytes

NotHttp = (h11.RemoteProtocolError, h11.LocalProtocolError)
"""Errors raised for a message that cannot be followed."""

_END = b"\r\n\r\n"
_NOT_PLAIN = re.compile(
    rb"\n(?:content-length|transfer-encoding|upgrade|expect|[ \t])|\nconnection:(?! keep-alive\r)", re.IGNORECASE
)
_RESPONSE_NOT_PLAIN = re.compile(rb"\n(?:transfer-encoding|connection|upgrade|[ \t])", re.IGNORECASE)
_LENGTH = re.compile(rb"\ncontent-length: ?([0-9]{1,15})\r", re.IGNORECASE)
_ANY_LENGTH = re.compile(rb"\ncontent-length", re.IGNORECASE)
_GET = re.compile(rb"GET ([!-~]+) HTTP/1\.1\r\n")

Headers = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a request. `upgrade`: the headers by which it may become another protocol than HTTP."""

    method: bytes
    target: bytes
    upgrade: Headers = ()


class Incoming:
    """A request in progress. `head` None: it is incomplete. `keeps`: its client may send another on this connection."""

    def __init__(self) -> None:
        self.head: Head | None = None
        self.complete = False
        self.keeps = False
        self.wants_more = False
        self._parser: h11.Connection | None = None

    def feed(self, data: bytes) -> bytes:
        """Parse data; returns the bytes after this request. Raises `NotHttp`."""
        if self._parser is None:
            end = self._plain(data)
            if end:
                return data[end:]
            self._parser = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_MOST)
        self._parser.receive_data(data)
        while not self.complete:
            event = self._parser.next_event()
            if event is h11.NEED_DATA or event is h11.PAUSED:
                return b""
            if isinstance(event, h11.Request):
                upgrade = tuple((name, value) for name, value in event.headers if name in (b"upgrade", b"connection"))
                self.head = Head(event.method, event.target, upgrade)
            elif isinstance(event, h11.EndOfMessage):
                self.complete = True
        self.keeps = self._parser.their_state is h11.DONE
        self.wants_more = self._parser.their_state not in (h11.DONE, h11.MUST_CLOSE)
        return self._parser.trailing_data[0]

    def _plain(self, data: bytes) -> int:
        """Return the end of a complete request without a body; 0 for any other."""
        match = _GET.match(data)
        if match is None:
            return 0
        end = data.find(_END) + len(_END)
        if not len(_END) <= end <= HEAD_MOST or _NOT_PLAIN.search(data, 0, end):
            return 0
        self.head = Head(b"GET", match[1])
        self.complete = self.keeps = True
        return end


class Outgoing:
    """A response in progress.

    `switched`: what follows is not HTTP. `keeps`: the shim accepts another request. If the response may be replaced,
    its bytes are collected in `kept` and `body`; if it is passed on, `kept` is None.
    """

    def __init__(self, head: Head, *, collect: bool = False) -> None:
        self.complete = False
        self.switched = False
        self.keeps = False
        self.status = 0
        self.headers: Headers = ()
        self.kept = bytearray() if collect else None
        self.body = bytearray()
        self._head = head
        self._left = -1  # bytes of a plain response that are still to come
        self._parser: h11.Connection | None = None

    @property
    def size(self) -> int:
        """Return how many bytes of it are collected."""
        return len(self.kept or b"") + len(self.body)

    def feed(self, data: bytes) -> bytes:
        """Parse data; returns the bytes after this response. `data` empty: the shim closed. Raises `NotHttp`."""
        rest = self._feed(data)
        if self.kept is not None:
            self.kept += data[: len(data) - len(rest)]
        return rest

    def _feed(self, data: bytes) -> bytes:
        if self._left >= 0:
            if not data and self._left:
                raise h11.RemoteProtocolError("the shim closed before the end of its response")
            return self._more(data)
        if self._parser is None:
            start = self._plain(data)
            if start:
                return self._more(data[start:])
            self._parser = self._followed()
        return self._follow(self._parser, data)

    def _follow(self, parser: h11.Connection, data: bytes) -> bytes:
        parser.receive_data(data)
        while not self.complete:
            event = parser.next_event()
            if isinstance(event, h11.Data):
                if self.kept is not None:
                    self.body += event.data
            elif isinstance(event, h11.Response):
                self.status, self.headers = event.status_code, tuple(event.headers.raw_items())
            elif isinstance(event, h11.EndOfMessage):
                self.complete = True
            elif not isinstance(event, h11.InformationalResponse):
                self.switched = parser.their_state is h11.SWITCHED_PROTOCOL
                return b""
        self.keeps = parser.their_state is h11.DONE
        return parser.trailing_data[0]

    def _followed(self) -> h11.Connection:
        parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_MOST)
        headers = [(b"host", b"shim"), *self._head.upgrade]
        parser.send(h11.Request(method=self._head.method, target="/", headers=headers))  # not sent anywhere
        parser.send(h11.EndOfMessage())
        return parser

    def _plain(self, data: bytes) -> int:
        """Return the offset of the body in a response with a length to a GET; 0 for any other response."""
        if self._head.method != b"GET" or self._head.upgrade or not data.startswith(b"HTTP/1.1 200 "):
            return 0
        end = data.find(_END) + len(_END)
        length = _LENGTH.search(data, 0, end) if len(_END) <= end <= HEAD_MOST else None
        if length is None or len(_ANY_LENGTH.findall(data, 0, end)) > 1 or _RESPONSE_NOT_PLAIN.search(data, 0, end):
            return 0
        self._left, self.status, self.keeps = int(length[1]), 200, True
        if self.kept is not None:
            self.headers = tuple(_pairs(data[: end - len(_END)].split(b"\r\n")[1:]))
        return end

    def _more(self, data: bytes) -> bytes:
        taken = data[: self._left]
        self._left -= len(taken)
        if self.kept is not None:
            self.body += taken
        self.complete = self._left == 0
        return data[len(taken) :]


def _pairs(lines: Iterable[bytes]) -> Iterable[tuple[bytes, bytes]]:
    for line in lines:
        name, _, value = line.partition(b":")
        yield name, value.strip()
