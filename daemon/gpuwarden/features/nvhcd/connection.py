"""One HTTP/2 connection of a gRPC client: it gets one response, a GOAWAY, and is closed.

Every user of the host may connect, and HTTP/2 allows a client to open and reset streams without end (rapid reset). So a
connection gets one request: nothing after its headers is parsed, and further data is discarded up to a limit. A client
that follows the protocol makes its next request on a new connection.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import h2.config
import h2.connection
import h2.events
import h2.exceptions

from gpuwarden.features.nvhcd.wire import METHOD, framed

CLIENTS_MOST = 64
CLIENTS_OF_USER = 16
"""One user has few jobs on one node, and each makes one request before a rendezvous."""
INPUT_MOST = 128 << 10
"""Bytes that one connection may send: its headers (8 KiB in gRPC), and a message as large as HTTP/2's initial window."""
REQUEST_WITHIN = 10.0
"""Seconds from connect until the request; its client gives up after 60."""
GOAWAY_AFTER = 2.0
"""Seconds after the response. Some clients (grpclib) discard a response that they read together with a GOAWAY; most
have closed by then."""
LINGERS = 1.0
"""Seconds for a client that has its response to close its end; closing this end first would reset its writes."""
_PIECE = 4 << 10  # bytes parsed at once before checking for the request: at most 180 streams
_UNIMPLEMENTED = b"12"
_CONFIG = h2.config.H2Configuration(client_side=False, header_encoding=False)
_HEADERS = ((b":status", b"200"), (b"content-type", b"application/grpc+proto"))


class Connections:
    """The open connections: at most `CLIENTS_MOST`, and `CLIENTS_OF_USER` of one uid. A new one is never refused: it
    replaces one of the same user if that user has reached the limit, else one of the user who has most.
    """

    def __init__(self) -> None:
        self._open: dict[Connection, None] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: Connection) -> None:
        counts = Counter(each.uid for each in self._open)
        if counts[connection.uid] >= CLIENTS_OF_USER:
            self._end_one(connection.uid)
        elif len(self._open) >= CLIENTS_MOST:
            self._end_one(counts.most_common(1)[0][0])
        self._open[connection] = None

    def _end_one(self, uid: int) -> None:
        """End a connection of this user: preferably one that has its response, else the oldest."""
        theirs = [each for each in self._open if each.uid == uid]
        next((each for each in theirs if each.answered), theirs[0]).end()

    def remove(self, connection: Connection) -> None:
        self._open.pop(connection, None)

    def end(self) -> None:
        for connection in tuple(self._open):
            connection.end()


class Connection(asyncio.Protocol):
    """A connection of one client. `respond` makes the message for a client that calls `METHOD`."""

    def __init__(self, uid: int, connections: Connections, respond: Callable[[], bytes]) -> None:
        self.uid = uid
        self.answered = False
        self._connections = connections
        self._respond = respond
        self._h2: h2.connection.H2Connection | None = h2.connection.H2Connection(_CONFIG)
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - of a stream socket
        self._transport = transport
        self._connections.add(self)
        self._after(REQUEST_WITHIN, self.end)
        if self._h2 is not None:
            self._h2.initiate_connection()
            self._send(self._h2)

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        if self._received > INPUT_MOST:
            self.end()
        elif not self.answered and self._h2 is not None:
            try:
                self._parse(self._h2, data)
            except Exception:  # noqa: BLE001 - whatever the libraries make of a user's bytes ends that user's connection alone
                self.end()

    def connection_lost(self, _: BaseException | None) -> None:
        self.end()

    def end(self) -> None:
        """Close it at once, and free its place and its buffers."""
        self._connections.remove(self)
        self._h2 = None
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def _parse(self, conversation: h2.connection.H2Connection, data: bytes) -> None:
        """Parse the data up to the request. Raises what h2 and hpack raise."""
        for start in range(0, len(data), _PIECE):
            for event in conversation.receive_data(data[start : start + _PIECE]):
                if isinstance(event, h2.events.RequestReceived):
                    self._answer(conversation, event)
                    return
            self._send(conversation)

    def _answer(self, conversation: h2.connection.H2Connection, request: h2.events.RequestReceived) -> None:
        """Answer the request. Raises ProtocolError if the client has reset it already."""
        self.answered = True
        stream = request.stream_id
        if dict(request.headers).get(b":path") == METHOD:
            conversation.send_headers(stream, _HEADERS)
            conversation.send_data(stream, framed(self._respond()))
            conversation.send_headers(stream, ((b"grpc-status", b"0"),), end_stream=True)
        else:
            conversation.send_headers(stream, (*_HEADERS, (b"grpc-status", _UNIMPLEMENTED)), end_stream=True)
        self._send(conversation)
        conversation.close_connection(last_stream_id=stream)
        goaway, self._h2 = conversation.data_to_send(), None
        self._after(GOAWAY_AFTER, lambda: self._leave(goaway))

    def _leave(self, goaway: bytes) -> None:
        if self._transport is not None:
            self._transport.write(goaway)
            self._after(LINGERS, self.end)

    def _send(self, conversation: h2.connection.H2Connection) -> None:
        data = conversation.data_to_send()
        if data and self._transport is not None:
            self._transport.write(data)

    def _after(self, seconds: float, work: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, work)
