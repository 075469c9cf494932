"""A proxy between dstack's server and the shim of this host, which adds gpuwarden's health of the node to the shim's.

Every route passes unchanged, except the health of this host in mode enforce. It works without a running daemon: it uses
what the daemon published last, and an exclusion stays until it is lifted.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from gpuwarden.base.addresses import Address
from gpuwarden.features.dstack.framing import Head, Incoming, Outgoing
from gpuwarden.features.dstack.health_body import BODY_MOST, merged
from gpuwarden.features.dstack.link import SIZE, Link, Streams
from gpuwarden.features.dstack.node_health import PASSING, NodeHealth, node_health
from gpuwarden.integrations.process import left, let_in
from gpuwarden.integrations.published import Reader

if TYPE_CHECKING:  # structlog is for gpuwarden.base.log to import, which keeps it small
    from structlog.typing import FilteringBoundLogger

HEALTH = b"/api/instance/health"
SHIM_WITHIN = 4.0
"""Seconds to wait for the shim's response. dstack's server waits for 9, and for 0.22.5 any failure means unreachable."""
CLIENTS_MOST = 64
"""Most clients, each with a connection to the shim: each takes up to 0.3 MiB here, and 0.5 MiB of the kernel's memory,
of the 128 MiB of the unit."""
_KERNEL_HOLDS = 64 << 10
"""Bytes of a connection's kernel buffer for one direction (the kernel doubles it): by default it grows to megabytes,
which count as the unit's."""
STOPS_WITHIN = 10.0
"""Seconds that requests in progress may still take after SIGTERM."""
_LOG_EVERY = 60.0  # seconds between two lines about the same error
_OK = 200
_NOT_KEPT = (b"content-length", b"transfer-encoding", b"content-encoding", b"content-type", b"connection", b"trailer")


class Interposer:
    """The proxy in front of the shim.

    If not `enabled`, everything passes unchanged. `mode`: the configured one, used until there is a verdict.
    """

    def __init__(
        self,
        *,
        shim: Address,
        reader: Reader,
        enabled: bool,
        mode: str,
        log: FilteringBoundLogger,
        shim_within: float = SHIM_WITHIN,
        clients_most: int = CLIENTS_MOST,
    ) -> None:
        self._shim = shim
        self._reader = reader
        self._enabled = enabled
        self._mode = mode
        self._log = log
        self.patience = shim_within
        self.most = BODY_MOST
        self._clients_most = clients_most
        self._links: dict[Link, None] = {}  # the oldest first
        self._before: NodeHealth | None = None
        self._stopping = False
        self._logged: dict[str, float] = {}

    async def serve(self, listener: socket.socket, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then finish requests in progress within `STOPS_WITHIN` seconds."""
        server = await asyncio.start_server(self._client, sock=listener, limit=SIZE)
        await stop.wait()
        await let_in(listener)
        server.close()
        self._stopping = True
        for link in tuple(self._links):
            link.stop()
        await left(self._links, STOPS_WITHIN)
        for link in tuple(self._links):
            link.cut()

    # --- as the responder of every link

    def answers(self, head: Head) -> bool:
        return head.method == b"GET" and _path(head.target) == HEALTH and self._health() is not None

    def answer(self, request: Incoming, shim: Outgoing | None) -> tuple[bytes, bool]:
        own = self._health()  # read again: the shim may have taken long
        if shim is None:
            self._warn("shim reports no health; reporting gpuwarden's alone", shim=str(self._shim))
        if own is None:  # changed meanwhile
            return (b"", False) if shim is None else (bytes(shim.kept or b""), shim.keeps)
        self._remember(own)
        usable = shim is not None and shim.status == _OK and not _is_encoded(shim)
        body = merged(bytes(shim.body) if shim is not None and usable else None, own)
        if shim is not None and (body is None or (own == PASSING and not usable)):
            return bytes(shim.kept or b""), shim.keeps and request.keeps
        keeps = request.keeps if shim is None else shim.keeps and request.keeps
        return _response(() if shim is None else shim.headers, body or b"", keeps=keeps), keeps

    # ---

    def _health(self) -> NodeHealth | None:
        if not self._enabled:
            return None
        return node_health(self._reader.read(), before=self._before, mode=self._mode)

    def _remember(self, own: NodeHealth) -> None:
        if own != self._before:
            self._before = own
            self._log.info("health reported to dstack", level=int(own.level), why=own.message or "healthy")

    async def _to_shim(self) -> Streams:
        """Connect to the shim. Raises OSError if it cannot be reached, which is logged."""
        try:
            reader, writer = await asyncio.open_connection(self._shim.host, self._shim.port, limit=SIZE)
        except OSError as error:
            self._warn(
                f"cannot reach the shim at {self._shim}: {error.strerror or error}; its clients get a closed connection. Is it moved "
                "there, by DSTACK_SHIM_HTTP_PORT, and does it run?"
            )
            raise
        _narrow(writer)
        return reader, writer

    def _warn(self, message: str, **values: str) -> None:
        now = time.monotonic()
        if now - self._logged.get(message, float("-inf")) >= _LOG_EVERY:
            self._logged[message] = now
            self._log.warning(message, **values)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _narrow(writer)
        while len(self._links) >= self._clients_most:
            oldest = next((link for link in self._links if not link.busy), next(iter(self._links)))
            del self._links[oldest]
            oldest.cut()
        link = Link(reader, writer, responder=self, connect=self._to_shim)
        self._links[link] = None
        if self._stopping:
            link.stop()
        try:
            await link.run()
        finally:
            self._links.pop(link, None)


def _narrow(writer: asyncio.StreamWriter) -> None:
    """Limit the buffers of this connection."""
    writer.transport.set_write_buffer_limits(high=SIZE)
    with contextlib.suppress(OSError):
        sock = writer.get_extra_info("socket")
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, _KERNEL_HOLDS)


def _is_encoded(shim: Outgoing) -> bool:
    return any(name.lower() == b"content-encoding" for name, _ in shim.headers)


def _response(headers: Iterable[tuple[bytes, bytes]], body: bytes, *, keeps: bool) -> bytes:
    kept = [(name, value) for name, value in headers if name.lower() not in _NOT_KEPT]
    lines = [
        *kept,
        (b"Content-Type", b"application/json"),
        (b"Content-Length", b"%d" % len(body)),
        *([] if keeps else [(b"Connection", b"close")]),
    ]
    head = b"".join(b"%s: %s\r\n" % line for line in lines)
    return b"HTTP/1.1 200 OK\r\n" + head + b"\r\n" + body


def _path(target: bytes) -> bytes:
    """Return the path of a request target without its query, also of a target in the absolute form."""
    path = target.partition(b"?")[0]
    if path.startswith((b"http://", b"https://")):
        return b"/" + path.split(b"/", 3)[3] if path.count(b"/") > 2 else b"/"
    return path
