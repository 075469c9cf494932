"""The listening sockets. The guard decides for each new connection whether it uses TLS.

Any client may connect, including jobs on this host, so everything is bounded: connections, the TLS handshake, header
sizes, the time until a request is complete, and, by the kernel, the time for which a peer may leave data unread.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from typing import Any

from gpuwarden.base.accepting import accepted
from gpuwarden.base.addresses import ABSENT
from gpuwarden.publish.web import http as web
from gpuwarden.publish.web.connections import Connection, Connections, Refusals, Server, source_of
from gpuwarden.publish.web.guard import Guard
from gpuwarden.publish.web.rules import WebConfigError
from gpuwarden.publish.web.tls import Tls
from gpuwarden.publish.web.trimming import Trimming
from gpuwarden_collectors.dataclass import dataclass

_ENDS_WITHIN = 1.0  # seconds for requests in progress at a stop
HEADER_LIMIT = 4096  # bytes for the request line and for each header
SEND_BUFFER = 128 << 10
"""Bytes, doubled by the kernel: one page. The default (tcp_wmem) takes megabytes for each client that reads nothing."""
RECEIVE_BUFFER = 64 << 10
"""Bytes, doubled by the kernel: requests that a client can send ahead before one is served."""
BACKLOG = 128
"""Connections that the kernel queues until they are accepted."""
Answer = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class ListenError(Exception):
    """The address cannot be used, because of the configuration or another process. The message has the remedy."""


class GuardError(ListenError):
    """The web-config file has a fault, so it is unknown which clients may be served, and how."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the web server.

    Seconds: `deadline` for the first request to arrive and for a peer to read a response; `handshake` for TLS.
    """

    connections: int = 128
    """With TLS 0.3 MiB each, 40 MiB in total (docs/use/serving.md): less than a tenth of the unit's MemoryMax."""
    deadline: float = 10.0
    handshake: float = 5.0
    idle: float = 75.0
    """Seconds between two requests on one connection. Longer than usual scrape intervals, to avoid new handshakes."""


class Listener:
    def __init__(self, answer: Answer, guard: Guard, refusals: Refusals, limits: Limits, trimming: Trimming) -> None:
        self.connections = Connections(limits.connections, trimming)
        self._answer = answer
        self._guard = guard
        self._refusals = refusals
        self._limits = limits
        self._listening: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._opening: set[asyncio.Task[None]] = set()
        self._server: Server | None = None

    async def start(self, host: str, port: int) -> None:
        """Listen on the address. Raises ListenError, after which it may be called again."""
        silent = logging.Logger("http", logging.CRITICAL)  # noqa: LOG001 - private: garbage from scanners is not logged
        server = self._server = Server(
            self._answer,
            self.connections,
            self._refusals,
            self._limits.deadline,
            handler_cancellation=True,  # a client that leaves while it waits for a notice frees its place at once
            access_log=None,
            logger=silent,
            keepalive_timeout=self._limits.idle,
            lingering_time=0,
            max_line_size=HEADER_LIMIT,
            max_field_size=HEADER_LIMIT,
        )
        try:
            await self._guard.open()
            await self._listen(host, port)
        except WebConfigError as error:
            await self.stop()
            raise GuardError(f"the web configuration has a fault: {error}") from error
        except (OSError, OverflowError) as error:
            await self.stop()
            raise ListenError(_cannot_listen(host, port, error)) from error
        self._accepting = [asyncio.create_task(self._accept(listener, server)) for listener in self._listening]

    async def _listen(self, host: str, port: int) -> None:
        """Listen on all local addresses of `host`. Raises OSError, also if there is none, or OverflowError."""
        if port not in range(1 << 16):
            raise OverflowError("a port is 0 to 65535")
        # For a name as str, Python loads the tables of internationalised names, 0.1 MiB.
        name = host.encode() if host.isascii() else host
        addresses = await asyncio.get_running_loop().getaddrinfo(
            name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        absent: OSError | None = None
        for family, _, _, _, address in dict.fromkeys(addresses):
            try:
                listener = socket.create_server((address[0], port, *address[2:]), family=family, backlog=BACKLOG)
            except OSError as error:
                if error.errno not in ABSENT:
                    raise
                absent = error
                continue
            self._listening.append(listener)
            listener.setblocking(False)
            # accepted connections inherit all three
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(self._limits.deadline * 1000))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        if absent is not None and not self._listening:
            raise absent

    @property
    def addresses(self) -> list[tuple[str, int]]:
        return [listener.getsockname()[:2] for listener in self._listening]

    async def stop(self) -> None:
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        for listener in self._listening:
            listener.close()
        self._listening.clear()
        if self._server is not None:
            server, self._server = self._server, None
            await asyncio.sleep(0)  # requests that have arrived begin before idle connections are closed
            server.pre_shutdown()
            await server.shutdown(_ENDS_WITHIN)
        self.connections.end()
        await asyncio.gather(*self._opening, return_exceptions=True)
        await self._guard.close()

    # --- connections

    async def _accept(self, listener: socket.socket, server: Server) -> None:
        """Open each connection in a separate task, so that a slow handshake does not delay others."""
        loop = asyncio.get_running_loop()
        async for sock, peer in accepted(listener):
            task = loop.create_task(self._open(sock, peer, server))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, sock: socket.socket, peer: Any, server: Server) -> None:
        """Pass a connection to aiohttp, with TLS after a handshake with the current context."""
        handler, tls = server(), self._guard.tls
        self.connections.opened(handler, Connection(sock, tls, source_of(peer)))
        try:
            if tls is None:
                await asyncio.get_running_loop().connect_accepted_socket(lambda: handler, sock)
                return
            if why := await handshake(handler, sock, tls, self._limits.handshake):
                self._refusals.note("handshake", why, peer)
        except OSError:  # the peer has left
            sock.close()
        finally:
            if handler.transport is None:
                self.connections.closed(handler)


def _cannot_listen(host: str, port: int, error: Exception) -> str:
    number = error.errno if isinstance(error, OSError) else None
    advice = {
        errno.EADDRINUSE: "another process has this port (`ss -ltnp` names it); stop it, or listen elsewhere",
        errno.EADDRNOTAVAIL: "no interface of this host has this address",
        errno.EACCES: "ports below 1024 need root; choose a higher one",
    }.get(number or 0, "check the listen address")
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return f"cannot listen on {place}: {advice} ({error})"


NOT_TLS = b"HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\nThis port serves HTTPS, not HTTP.\n"


async def handshake(handler: web.RequestHandler, sock: socket.socket, tls: Tls, within: float) -> str:
    """Do the TLS handshake; `within`: seconds. Return the failure, or "". Raises OSError if the peer has left."""
    loop = asyncio.get_running_loop()
    with closing(sock.dup()) as again:  # asyncio closes its socket at the first byte that is not TLS
        try:
            await loop.connect_accepted_socket(
                lambda: handler, sock, ssl=tls.context, ssl_handshake_timeout=within, ssl_shutdown_timeout=within
            )
        except ssl.SSLError as error:
            error.__traceback__ = None  # asyncio's frames keep it and 256 KiB alive in a cycle
            if error.reason == "HTTP_REQUEST":
                with suppress(OSError):
                    again.send(NOT_TLS)
            return error.reason or "TLS"
        except ConnectionAbortedError as error:
            error.__traceback__ = None
            return "not finished in time"
        except OSError as error:
            error.__traceback__ = None
            raise
    return ""
