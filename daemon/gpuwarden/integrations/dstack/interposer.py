"""Stands where dstack's server asks the shim of this host, and says in its answer what gpuwarden knows of the node.

Every route goes through as it is, but for the one that tells the health of this host, in mode enforce. The daemon need not run
for it: what is said is what it published last, and an exclusion stands until it is lifted.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from gpuwarden.base.addresses import Address
from gpuwarden.integrations.dstack.framing import Head, Incoming, Outgoing
from gpuwarden.integrations.dstack.health_body import BODY_MOST, merged
from gpuwarden.integrations.dstack.link import Link, Streams
from gpuwarden.integrations.dstack.node_health import WELL, Word, word
from gpuwarden.integrations.process import left, let_in
from gpuwarden.integrations.published import Reader

if TYPE_CHECKING:  # structlog is for gpuwarden.base.log to import, which keeps it small
    from structlog.typing import FilteringBoundLogger

HEALTH = b"/api/instance/health"
SILENT_AFTER = 4.0
"""Seconds without an answer of the shim's. dstack's server waits for 9, and for 0.22.5 any failure means unreachable."""
CLIENTS_MOST = 256
STOPS_WITHIN = 10.0
"""Seconds that what has begun may still take after SIGTERM."""
_TELL_EVERY = 60.0  # seconds between two lines about the same trouble
_OK = 200
_NOT_KEPT = (b"content-length", b"transfer-encoding", b"content-encoding", b"content-type", b"connection", b"trailer")


class Interposer:
    """`speaks` False: everything goes through. `mode`: the configured one, which counts until there is a verdict."""

    def __init__(
        self, *, shim: Address, reader: Reader, speaks: bool, mode: str, log: FilteringBoundLogger,
        silent_after: float = SILENT_AFTER, clients_most: int = CLIENTS_MOST,
    ) -> None:  # fmt: skip
        self._shim = shim
        self._reader = reader
        self._speaks = speaks
        self._mode = mode
        self._log = log
        self.patience = silent_after
        self.most = BODY_MOST
        self._clients_most = clients_most
        self._links: dict[Link, None] = {}  # the oldest first
        self._before: Word | None = None
        self._stopping = False
        self._told: dict[str, float] = {}

    async def serve(self, listener: socket.socket, stop: asyncio.Event) -> None:
        """Until `stop`. What has begun by then is brought to its end, within `STOPS_WITHIN`."""
        server = await asyncio.start_server(self._client, sock=listener)
        await stop.wait()
        await let_in(listener)
        server.close()
        self._stopping = True
        for link in tuple(self._links):
            link.stop()
        await left(self._links, STOPS_WITHIN)
        for link in tuple(self._links):
            link.cut()

    # --- as the desk of every link

    def is_ours(self, head: Head) -> bool:
        return head.method == b"GET" and _path(head.target) == HEALTH and self._word() is not None

    def answer(self, request: Incoming, told: Outgoing | None) -> tuple[bytes, bool]:
        ours = self._word()  # anew: the shim took its time
        if told is None:
            self._trouble("the shim does not tell the health of this host; we tell ours alone", shim=str(self._shim))
        if ours is None:  # meanwhile we were told to be silent
            return (b"", False) if told is None else (bytes(told.kept or b""), told.keeps)
        self._remember(ours)
        usable = told is not None and told.status == _OK and not _is_encoded(told)
        body = merged(bytes(told.body) if told is not None and usable else None, ours)
        if told is not None and (body is None or (ours == WELL and not usable)):
            return bytes(told.kept or b""), told.keeps and request.keeps
        keeps = request.keeps if told is None else told.keeps and request.keeps
        return _response(() if told is None else told.headers, body or b"", keeps=keeps), keeps

    # ---

    def _word(self) -> Word | None:
        if not self._speaks:
            return None
        return word(self._reader.read(), before=self._before, mode=self._mode)

    def _remember(self, ours: Word) -> None:
        if ours != self._before:
            self._before = ours
            self._log.info("dstack is told of this node", level=int(ours.level), why=ours.message or "healthy")

    async def _to_shim(self) -> Streams:
        """Raises OSError."""
        try:
            return await asyncio.open_connection(self._shim.host, self._shim.port)
        except OSError as error:
            self._trouble(
                f"cannot reach the shim at {self._shim}: {error.strerror or error}; its clients see nobody listen. Is it moved "
                "there, by DSTACK_SHIM_HTTP_PORT, and does it run?"
            )
            raise

    def _trouble(self, what: str, **values: str) -> None:
        now = time.monotonic()
        if now - self._told.get(what, float("-inf")) >= _TELL_EVERY:
            self._told[what] = now
            self._log.warning(what, **values)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while len(self._links) >= self._clients_most:
            oldest = next((link for link in self._links if not link.busy), next(iter(self._links)))
            del self._links[oldest]
            oldest.cut()
        link = Link(reader, writer, desk=self, connect=self._to_shim)
        self._links[link] = None
        if self._stopping:
            link.stop()
        try:
            await link.run()
        finally:
            self._links.pop(link, None)


def _is_encoded(told: Outgoing) -> bool:
    return any(name.lower() == b"content-encoding" for name, _ in told.headers)


def _response(headers: Iterable[tuple[bytes, bytes]], body: bytes, *, keeps: bool) -> bytes:
    kept = [(name, value) for name, value in headers if name.lower() not in _NOT_KEPT]
    lines = [
        *kept, (b"Content-Type", b"application/json"), (b"Content-Length", b"%d" % len(body)),
        *([] if keeps else [(b"Connection", b"close")]),
    ]  # fmt: skip
    head = b"".join(b"%s: %s\r\n" % line for line in lines)
    return b"HTTP/1.1 200 OK\r\n" + head + b"\r\n" + body


def _path(target: bytes) -> bytes:
    """Without the query; of the absolute form, too."""
    path = target.partition(b"?")[0]
    if path.startswith((b"http://", b"https://")):
        return b"/" + path.split(b"/", 3)[3] if path.count(b"/") > 2 else b"/"
    return path
