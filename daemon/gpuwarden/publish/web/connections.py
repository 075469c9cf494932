"""Limits the open connections. A new one replaces the longest idle connection of the address with the most."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from contextlib import suppress
from ipaddress import IPv6Address, ip_address
from typing import Any

from gpuwarden.base.log import get_logger
from gpuwarden.publish.web import http as web
from gpuwarden.publish.web.tls import Tls
from gpuwarden.publish.web.trimming import Trimming
from gpuwarden_collectors.dataclass import dataclass

log = get_logger()

LOG_EVERY = 60.0
"""Seconds between two log lines about clients refused for the same reason."""


@dataclass(slots=True)
class Connection:
    """An open connection.

    `source`: see `source_of`. `transport`: None until the TLS handshake is done. `answering`: it serves a request.
    """

    sock: socket.socket
    tls: Tls | None
    source: str = ""
    transport: asyncio.Transport | None = None
    answering: bool = False
    first: asyncio.TimerHandle | None = None
    """Timer that ends the connection unless its first request arrives."""

    def asked(self) -> None:
        if self.first is not None:
            self.first.cancel()
            self.first = None

    def end(self) -> None:
        if self.transport is not None:
            self.transport.abort()
            return
        with suppress(OSError):  # the peer has left
            self.sock.shutdown(socket.SHUT_RDWR)


class Connections:
    """The open connections, at most `most`, including those in their handshake. `turned_away` counts those closed for
    new ones. A new connection is never refused, because many clients that connect and send nothing would otherwise keep
    a scraper out. Many connections from one address do not end those of another, because a client that reconnects
    repeatedly would keep it out too.
    """

    def __init__(self, most: int, trimming: Trimming) -> None:
        self.turned_away = 0
        self._trimming = trimming
        self._most = most
        self._open: dict[web.RequestHandler, Connection] = {}  # longest idle first

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, handler: web.RequestHandler, connection: Connection) -> None:
        while len(self._open) >= self._most:
            self.turned_away += 1
            self._trimming.later()
            quiet = self._open.pop(self._makes_room())
            quiet.asked()
            quiet.end()
        self._open[handler] = connection

    def _makes_room(self) -> web.RequestHandler:
        quiet = {
            handler: connection for handler, connection in self._open.items() if not connection.answering
        } or self._open
        counts = Counter(connection.source for connection in quiet.values())
        most = max(counts.values())
        return next(handler for handler, connection in quiet.items() if counts[connection.source] == most)

    def await_request(self, handler: web.RequestHandler, within: float) -> None:
        """End the connection unless a complete request arrives in time. Later ones have aiohttp's idle timeout."""
        connection = self._open[handler]
        connection.first = asyncio.get_running_loop().call_later(within, connection.end)

    def asked(self, handler: web.RequestHandler) -> None:
        """Cancel the time limit of the connection, since a complete request has arrived."""
        if (connection := self._open.get(handler)) is not None:
            connection.asked()

    def find(self, handler: web.RequestHandler) -> Connection | None:
        """Return the open connection of this handler; None if it was just closed for a new one."""
        return self._open.get(handler)

    def spoke(self, handler: web.RequestHandler, *, answering: bool) -> None:
        """Mark the connection while its request is served: it is then closed for a new one only if all others are
        marked too. It is the least idle one now.
        """
        connection = self._open.pop(handler, None)
        if connection is not None:
            connection.answering = answering
            self._open[handler] = connection

    def closed(self, handler: web.RequestHandler) -> None:
        if (connection := self._open.pop(handler, None)) is not None:
            connection.asked()

    def end(self) -> None:
        for connection in self._open.values():
            connection.end()


def source_of(peer: Any) -> str:
    """Return the owner of an address: one process may use all loopback addresses, one host a whole IPv6 /64."""
    address = ip_address(peer[0])
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or address
    if address.is_loopback:
        return "loopback"
    return (address.packed[:8] if isinstance(address, IPv6Address) else address.packed).hex()


class Refusals:
    """Counts the clients that got no response, by reason; logs one line a minute for each reason."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._logged: dict[str, float] = {}

    def note(self, kind: str, why: str, peer: Any) -> None:
        self.counts[kind] += 1
        now = asyncio.get_running_loop().time()
        if now >= self._logged.get(kind, float("-inf")) + LOG_EVERY:
            self._logged[kind] = now
            address = peer[0] if isinstance(peer, tuple) and peer else ""
            log.info("client refused", kind=kind, why=why, client=address, so_far=self.counts[kind])


class Server(web.Server):
    """aiohttp's server, which also tracks open connections, and ends those with a wrong certificate name."""

    def __init__(
        self, answer: Any, connections: Connections, refusals: Refusals, first_within: float, **options: Any
    ) -> None:
        super().__init__(answer, **options)
        self._first_within = first_within
        self._here = connections
        self._refusals = refusals

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        # drain() waits until nothing of a response is buffered here; high=0 would stop TLS
        transport.set_write_buffer_limits(high=1, low=0)
        connection = self._here.find(handler)
        if connection is None:
            transport.abort()
            return
        connection.transport = transport
        self._here.await_request(handler, self._first_within)
        if connection.tls is not None and (why := connection.tls.refusal(transport.get_extra_info("peercert"))):
            self._refusals.note("name", why, transport.get_extra_info("peername"))
            transport.abort()

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self._here.closed(handler)
