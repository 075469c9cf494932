"""dstack's agent as its server knows it, on a port of loopback: the routes of its API, and one that sends given bytes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

HEALTH = "/api/instance/health"


@dataclass
class Shim:
    """`health`: the body of its health route, `status` its status; `silent`: it takes that question and never answers."""

    port: int = 0
    health: bytes = b'{"dcgm":null}\n'
    status: int = 200
    silent: bool = False
    version: str = "0.22.5"
    submitted: list[bytes] = field(default_factory=list)

    async def _health(self, _request: web.Request) -> web.Response:
        if self.silent:
            await asyncio.sleep(3600)
        return web.Response(body=self.health, status=self.status, content_type="application/json")

    async def _healthcheck(self, _request: web.Request) -> web.Response:
        return web.json_response({"service": "dstack-shim", "version": self.version})

    async def _submit(self, request: web.Request) -> web.Response:
        self.submitted.append(await request.read())
        return web.json_response({"ids": None})

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        """Pieces, each when the one before was taken: in a body of unknown length."""
        answer = web.StreamResponse()
        answer.enable_chunked_encoding()
        await answer.prepare(request)
        for number in range(3):
            await answer.write(b"piece %d\n" % number * 2000)
        return answer

    async def _socket(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            await socket.send_str(f"received {message.data}")
        return socket

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_get(HEALTH, self._health)
        app.router.add_get("/api/healthcheck", self._healthcheck)
        app.router.add_post("/api/tasks", self._submit)
        app.router.add_get("/stream", self._stream)
        app.router.add_get("/socket", self._socket)
        return app


@asynccontextmanager
async def shim(prepared_shim: Shim | None = None, port: int = 0) -> AsyncIterator[Shim]:
    served_shim = prepared_shim or Shim()
    runner = web.AppRunner(served_shim.app(), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        served_shim.port = runner.addresses[0][1]
        yield served_shim
    finally:
        await runner.cleanup()


Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[int]:
    """The port of a server that does with each connection what the script does."""

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await script(reader, writer)
        writer.close()

    server = await asyncio.start_server(client, "127.0.0.1", 0, limit=1 << 20)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
