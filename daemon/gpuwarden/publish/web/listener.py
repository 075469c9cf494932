"""The listening socket: connections in, requests out; with TLS or without, as the guard says at that moment.

Anybody may connect, jobs on this host included, so that everything is bounded: connections, the TLS handshake, header
sizes, the time until a request is complete, and, by the kernel, the time a peer may leave what was sent to it unread.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gpuwarden.publish.web import http as web
from gpuwarden.publish.web.connections import Connections, Refusals, Server
from gpuwarden.publish.web.guard import Guard
from gpuwarden.publish.web.rules import WebConfigError

_ENDS_WITHIN = 1.0  # seconds for requests that are being answered, at the end
HEADER_LIMIT = 4096  # bytes for the request line and for each header
SEND_BUFFER = 128 << 10
"""Bytes, of which the kernel makes twice as many: a page. Else each client that reads nothing is sent megabytes at once (tcp_wmem)."""
Answer = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class ListenError(Exception):
    """The address cannot be listened on: the configuration or another process is at fault. The message says what to do."""


@dataclass(frozen=True, slots=True)
class Limits:
    """`deadline` in seconds: for a request to arrive, for a peer to take what it is sent; `handshake`: for that of TLS."""

    connections: int = 256
    deadline: float = 10.0
    handshake: float = 5.0


class Listener:
    def __init__(self, answer: Answer, guard: Guard, refusals: Refusals, limits: Limits) -> None:
        self.connections = Connections(limits.connections)
        self._answer = answer
        self._guard = guard
        self._refusals = refusals
        self._limits = limits
        self._listening: asyncio.Server | None = None
        self._server: Server | None = None

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises ListenError."""
        silent = logging.Logger("http", logging.CRITICAL)  # noqa: LOG001 - private: garbage from scanners is no news
        server = self._server = Server(
            self._answer,
            self.connections,
            self._refusals,
            handler_cancellation=True,  # who waits for a notice and leaves gives the place free at once
            access_log=None,
            logger=silent,
            keepalive_timeout=self._limits.deadline,
            lingering_time=0,
            max_line_size=HEADER_LIMIT,
            max_field_size=HEADER_LIMIT,
        )
        try:
            await self._guard.open()
            loop = asyncio.get_running_loop()
            self._listening = await loop.create_server(lambda: self._connection(server), host, port)
        except WebConfigError as error:
            await self.stop()
            raise ListenError(f"the web configuration has a fault: {error}") from error
        except (OSError, OverflowError) as error:
            await self.stop()
            raise ListenError(_cannot_listen(host, port, error)) from error
        for listener in self._listening.sockets:  # what is accepted inherits it
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(self._limits.deadline * 1000))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        listening = () if self._listening is None else self._listening.sockets
        return [listener.getsockname()[:2] for listener in listening]

    async def stop(self) -> None:
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        if self._server is not None:
            server, self._server = self._server, None
            await asyncio.sleep(0)  # what has arrived is begun before idle connections are closed
            server.pre_shutdown()
            await server.shutdown(_ENDS_WITHIN)
        self.connections.end()
        await self._guard.close()

    def _connection(self, server: Server) -> asyncio.BaseProtocol:
        handler, tls = server(), self._guard.tls
        if tls is None:
            return handler
        from gpuwarden.publish.web.tls_protocol import TlsProtocol  # noqa: PLC0415 - only with TLS

        return TlsProtocol(handler, tls, self.connections, self._refusals.note, self._limits.handshake)


def _cannot_listen(host: str, port: int, error: Exception) -> str:
    number = error.errno if isinstance(error, OSError) else None
    advice = {
        errno.EADDRINUSE: "another process has this port (`ss -ltnp` names it); stop it, or listen elsewhere",
        errno.EADDRNOTAVAIL: "no interface of this host has this address",
        errno.EACCES: "ports below 1024 are root's; choose a higher one",
    }.get(number or 0, "check the listen address")
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return f"cannot listen on {place}: {advice} ({error})"
