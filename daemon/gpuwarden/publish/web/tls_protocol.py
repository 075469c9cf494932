"""TLS below aiohttp's handlers."""

from __future__ import annotations

import asyncio
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from typing import Any

from gpuwarden.publish.web import http as web
from gpuwarden.publish.web.connections import Connections
from gpuwarden.publish.web.tls import Tls

NOT_TLS = b"HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\nHTTPS is spoken here, not HTTP.\n"
_METHODS = range(ord("A"), ord("Z") + 1)  # what a request begins with; a record of TLS begins with 22


class TlsProtocol(SSLProtocol):
    """The layer below aiohttp's handler: one of these for each connection, with the context that holds at that moment.

    (`create_server(ssl=…)` would keep the first context for ever, and 256 KiB for each connection.)
    """

    max_size = 16 * 1024  # a record; requests are headers only

    def __init__(
        self,
        handler: web.RequestHandler,
        tls: Tls,
        connections: Connections,
        refused: Callable[[str, str, Any], None],
        deadline: float,
    ) -> None:
        bounds: dict[str, Any] = {"ssl_handshake_timeout": deadline, "ssl_shutdown_timeout": deadline}
        waiter: Any = None  # nobody waits for the handshake
        super().__init__(asyncio.get_running_loop(), handler, tls.context, waiter, server_side=True, **bounds)
        self._handler = handler
        self._tls = tls
        self._connections = connections
        self._refused = refused
        self._below: asyncio.Transport | None = None
        self._peer: Any = None
        self._spoke = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - what a stream protocol is given
        self._below, self._peer = transport, transport.get_extra_info("peername")
        self._connections.opened(self._handler, transport, self._tls)
        super().connection_made(transport)

    def buffer_updated(self, nbytes: int) -> None:
        if not self._spoke and self._below is not None:
            self._spoke = True
            if self.get_buffer(-1)[0] in _METHODS:
                self._below.write(NOT_TLS)
                self._below.close()
                return
        super().buffer_updated(nbytes)

    def connection_lost(self, exc: BaseException | None) -> None:
        begun = self._handler.transport is not None
        super().connection_lost(exc)
        self._connections.closed(self._handler)
        if not begun and isinstance(exc, ssl.SSLError | ConnectionAbortedError):
            why = exc.reason if isinstance(exc, ssl.SSLError) else "not finished in time"
            self._refused("handshake", why or "TLS", self._peer)
