"""The HTTP server in the process of the test, on a port of its own, and clients that send what they are given."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gpuwarden.health.model import Event
from gpuwarden.publish.metrics.exposition import Holder, Renderer
from gpuwarden.publish.notices import Notices
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden.publish.web.listener import Limits
from gpuwarden.publish.web.pages import Web
from gpuwarden_collectors.facts import Stamp
from support.snapshots import UPTIME, at, snapshot

PATIENCE = 150.0


@dataclass
class Served:
    """A server and what the test may change about it."""

    web: Web
    holder: Holder
    now: list[Stamp]
    notices: Notices
    asked: list[tuple[float, int]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    @property
    def port(self) -> int:
        return self.web.addresses[0][1]

    @property
    def connected(self) -> int:
        return len(self.web._listener.connections)


@dataclass
class Answer:
    code: int
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> dict[str, object]:
        document = json.loads(self.body)
        assert isinstance(document, dict)
        return document


@asynccontextmanager
async def serving(
    shown: Snapshot | None = None,
    *,
    host: str = "127.0.0.1",
    config: Path | None = None,
    check_every: float = 0.05,
    connections: int = Limits().connections,
    deadline: float = 10.0,
    handshake: float = 5.0,
    idle: float = Limits().idle,
) -> AsyncIterator[Served]:
    now = [at(UPTIME + 1)]
    notices = Notices()

    async def events(since: float, limit: int) -> Sequence[Event]:
        served.asked.append((since, limit))
        return served.events[:limit]

    holder = Holder(Renderer(), shown or snapshot())
    limits = Limits(connections=connections, deadline=deadline, handshake=handshake, idle=idle)
    web = Web(
        holder, events, clock=lambda: now[0], notices=notices, config=config, limits=limits,
        check_every=check_every,
    )  # fmt: skip
    served = Served(web, holder, now, notices)
    await web.start(host, 0)
    try:
        yield served
    finally:
        await web.stop()


async def exchange(port: int, request: bytes, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> bytes:
    """Everything that the server sends until it closes."""
    async with asyncio.timeout(PATIENCE):
        name = "localhost" if tls is not None else None
        reader, writer = await asyncio.open_connection(host, port, ssl=tls, server_hostname=name)
        try:
            writer.write(request)
            return await reader.read()
        finally:
            writer.close()


def parsed(raw: bytes) -> Answer:
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    pairs = (line.partition(": ") for line in lines)
    return Answer(int(first.split()[1]), {name.lower(): value for name, _, value in pairs}, body)


async def get(
    served: Served,
    path: str,
    method: str = "GET",
    body: bytes = b"",
    *,
    tls: ssl.SSLContext | None = None,
    **headers: str,
) -> Answer:
    headers = {"Host": "a", "Connection": "close"} | headers | ({"Content-Length": str(len(body))} if body else {})
    head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return parsed(await exchange(served.port, f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body, tls=tls))


class Scraper:
    """One connection that is kept, as Prometheus keeps it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, served: Served, tls: ssl.SSLContext | None = None) -> Scraper:
        name = "localhost" if tls is not None else None
        async with asyncio.timeout(PATIENCE):
            return cls(*await asyncio.open_connection("127.0.0.1", served.port, ssl=tls, server_hostname=name))

    async def get(self, path: str, **headers: str) -> Answer:
        """Raises IncompleteReadError or ConnectionError if the server ended the connection."""
        head = "".join(f"{name}: {value}\r\n" for name, value in {"Host": "a", **headers}.items())
        async with asyncio.timeout(PATIENCE):
            self.writer.write(f"GET {path} HTTP/1.1\r\n{head}\r\n".encode())
            raw = await self._reader.readuntil(b"\r\n\r\n")
            answer = parsed(raw)
            answer.body = await self._reader.readexactly(int(answer.headers["content-length"]))
            return answer

    def close(self) -> None:
        self.writer.close()
