"""nvidia-resiliency-ext's node health check: ft_launcher calls it before each rendezvous of a job.

A node that gpuwarden excludes fails the check, and the job goes on with a spare. Everything else passes it: unknown
health, a warning, mode observe. It reads only what the daemon published.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grpclib.config import Configuration
from grpclib.const import Cardinality, Handler
from grpclib.protocol import H2Protocol
from grpclib.server import Server, Stream

from gpuwarden.integrations.nvhcd.wire import METHOD, Codec, Request, Response
from gpuwarden.integrations.process import left, let_in
from gpuwarden.integrations.published import Published, Reader

if TYPE_CHECKING:  # structlog is for gpuwarden.base.log to import, which keeps it small
    from structlog.typing import FilteringBoundLogger

NAME = "nvhcd"
"""Of the actuator, whose marker counts."""
CLIENTS_MOST = 64
STOPS_WITHIN = 2.0
"""Seconds; its clients leave with their response."""
_WINDOW = 64 << 10  # bytes that a client may send unread: the minimum of grpclib
_LOG_EVERY = 60.0  # seconds between two equal lines of the log


@dataclass(frozen=True, slots=True)
class Outcome:
    """`failed` are codes of findings. `unknown`: why this node's health is unknown, empty if it is known."""

    failed: tuple[str, ...] = ()
    reason: str = ""
    unknown: str = ""


def outcome(published: Published, *, mode: str) -> Outcome:
    """`mode`: the configured one, used until a verdict has it. Pure."""
    verdict, marker = published.verdict, published.marker
    if verdict is not None and verdict.simulated:
        return Outcome(unknown="the verdict is about simulated GPUs")
    in_force = mode if verdict is None else verdict.mode
    if marker is not None and (marker.cause == "person" or in_force != "observe"):
        return Outcome((marker.check or marker.cause,), marker.reason)
    if verdict is None:
        return Outcome(unknown=published.missing)
    state = "gpuwarden cannot observe this node" if verdict.state == "unknown" else ""
    return Outcome(unknown=published.doubt or verdict.stale or state)


def response(found: Outcome) -> Response:
    """The check itself always succeeds; its result is in `output`. The client reads `fail_count`, its documentation has `failed_checks`."""
    document = {"fail_count": len(found.failed), "failed_checks": list(found.failed)}
    if found.reason:
        document["reason"] = [found.reason]
    return Response(success=True, output=json.dumps(document, separators=(",", ":")))


class HealthCheckService:
    def __init__(self, *, reader: Reader, mode: str, log: FilteringBoundLogger) -> None:
        self._reader = reader
        self._mode = mode
        self._log = log
        self._logged: dict[Outcome, float] = {}

    def __mapping__(self) -> dict[str, Handler]:
        return {METHOD: Handler(self._run, Cardinality.UNARY_UNARY, Request, Response)}

    async def _run(self, stream: Stream[Request, Response]) -> None:
        found = outcome(self._reader.read(), mode=self._mode)
        self._log_outcome(found)
        await stream.send_message(response(found))

    def _log_outcome(self, found: Outcome) -> None:
        now = time.monotonic()
        if now - self._logged.get(found, float("-inf")) < _LOG_EVERY:
            return
        self._logged = {one: at for one, at in self._logged.items() if now - at < _LOG_EVERY} | {found: now}
        if found.failed:
            self._log.warning("node health check failed", checks=list(found.failed), reason=found.reason)
        elif found.unknown:
            self._log.warning("node health check passed without a verdict", why=found.unknown)
        else:
            self._log.info("node health check passed")


class Service(Server):
    """At most `CLIENTS_MOST` connections: one more replaces the oldest."""

    def __init__(self, service: HealthCheckService) -> None:
        window = Configuration(http2_connection_window_size=_WINDOW, http2_stream_window_size=_WINDOW)
        super().__init__([service], codec=Codec(), config=window)
        self._open: dict[_Connection, None] = {}

    def _protocol_factory(self) -> H2Protocol:
        made = super()._protocol_factory()
        return _Connection(made.handler, made.config, made.h2_config, self._open)

    async def serve(self, listener: socket.socket, stop: asyncio.Event) -> None:
        """Until `stop`. Connected clients are still answered, within `STOPS_WITHIN`."""
        await self.start(sock=listener)
        await stop.wait()
        await let_in(listener)
        if self._server is not None:
            self._server.close()
        await left(self._open, STOPS_WITHIN)
        self.close()
        for connection in tuple(self._open):
            connection.cut()
        await self.wait_closed()


class _Connection(H2Protocol):
    def __init__(self, handler: Any, config: Any, h2_config: Any, beside: dict[_Connection, None]) -> None:
        super().__init__(handler, config, h2_config)
        self._beside = beside
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._transport = transport
        self._beside[self] = None
        if len(self._beside) > CLIENTS_MOST:
            next(iter(self._beside)).cut()

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._beside.pop(self, None)

    def cut(self) -> None:
        self._beside.pop(self, None)
        if self._transport is not None:
            self._transport.close()
