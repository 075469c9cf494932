"""The HTTP server: read-only, GET and HEAD, no bodies. It serves what the holder shows and computes nothing but ages.

Anybody may connect, jobs on this host included, so that everything is bounded: connections (one too many ends the
oldest, so that nobody can lock a scraper out), header sizes, the time until a request is complete, and, by the kernel,
the time a peer may leave what was sent to it unread.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import socket
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING

from aiohttp import web

from gpuwarden.health.model import Event
from gpuwarden.publish import status
from gpuwarden.publish.exposition import Holder
from gpuwarden.publish.notices import WAIT_MOST, Notices
from gpuwarden_collectors.base import Clock, host_clock

if TYPE_CHECKING:  # structlog is for gpuwarden.log to import, which keeps it small
    from structlog.typing import FilteringBoundLogger

EventsSince = Callable[[float, int], Awaitable[Sequence[Event]]]
"""(Unix time, at most so many) -> the events since then, oldest first."""

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
JSON = "application/json"
VARY = "Accept, Accept-Encoding"
EVENTS_LIMIT = 1000
HEADER_LIMIT = 4096  # bytes for the request line and for each header

INDEX = """gpuwarden on {node}{simulated}

/metrics      Prometheus text or OpenMetrics
/heartbeat    200 while this node may take work, else 503
/healthz      the daemon runs
/readyz       the first full pass is done
/v1/status    everything, as JSON
/v1/gpus
/v1/findings
/v1/events?since=TIME   RFC 3339 or Unix time
/v1/notice?wait=S       the end of this machine; waits until one is imminent, or with tag=ETAG until another is
"""


class ListenError(Exception):
    """The address cannot be listened on: the configuration or another process is at fault. The message says what to do."""


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0


def _accepted(header: str) -> list[tuple[str, list[str], float]]:
    """The entries of an Accept or Accept-Encoding header: what, its parameters, its quality (0: refused)."""
    entries = []
    for entry in header.lower().split(","):
        what, *parameters = entry.replace(" ", "").split(";")
        entries.append((what, parameters, _quality(parameters)))
    return entries


def wants_openmetrics(accept: str) -> bool:
    """OpenMetrics 1.0 is asked for, and nothing else that we speak is liked better."""
    openmetrics = text = 0.0
    for what, parameters, quality in _accepted(accept):
        versions = [p for p in parameters if p.startswith("version=")]
        if what == "application/openmetrics-text" and versions in ([], ["version=1.0.0"]):
            openmetrics = max(openmetrics, quality)
        elif what in ("text/plain", "text/*", "*/*"):
            text = max(text, quality)
    return openmetrics > 0 and openmetrics >= text


def wants_gzip(accept_encoding: str) -> bool:
    qualities = {what: quality for what, _, quality in _accepted(accept_encoding)}
    return qualities.get("gzip", qualities.get("*", 0.0)) > 0


def parse_since(text: str) -> float:
    """Unix time of `since=`: a number, or RFC 3339 (UTC where it names no zone). Raises ValueError with what was expected."""
    try:
        wall = float(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(
                f"since={text[:40]!r}: expected a Unix time or RFC 3339, like 2026-01-31T12:00:00Z (write + as %2B)"
            ) from None
        wall = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if not math.isfinite(wall):
        raise ValueError(f"since={text[:40]!r}: expected a finite Unix time")
    return wall


def _json(document: object, code: int = 200) -> web.Response:
    return web.Response(body=status.to_json(document), status=code, content_type=JSON)


def _error(code: int, message: str) -> web.Response:
    return _json({"error": message}, code)


class Web:
    """`deadline` in seconds: for a request to arrive, for the events to be read, for a peer to take what it is sent."""

    def __init__(
        self,
        holder: Holder,
        events: EventsSince,
        log: FilteringBoundLogger,
        *,
        clock: Clock = host_clock,
        notices: Notices | None = None,
        connections: int = 256,
        deadline: float = 10.0,
    ) -> None:
        self._holder = holder
        self._events = events
        self._log = log
        self._clock = clock
        self._notices = notices or Notices()
        self._connections = connections
        self._deadline = deadline
        self._form = lru_cache(64)(lambda accept, encoding: (wants_openmetrics(accept), wants_gzip(encoding)))
        self._listening: asyncio.Server | None = None
        self._runner: web.ServerRunner | None = None
        self._routes: dict[str, Callable[[web.BaseRequest], Awaitable[web.Response]]] = {
            "/": self._index,
            "/metrics": self._metrics,
            "/heartbeat": self._heartbeat,
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            "/v1/status": self._status,
            "/v1/gpus": self._gpus,
            "/v1/findings": self._findings,
            "/v1/events": self._events_since,
            "/v1/notice": self._notice,
        }

    # --- life

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises ListenError."""
        silent = logging.Logger("http", logging.CRITICAL)  # noqa: LOG001 - private: garbage from scanners is no news
        server = web.Server(
            self._answer,
            access_log=None,
            logger=silent,
            keepalive_timeout=self._deadline,
            lingering_time=0,
            max_line_size=HEADER_LIMIT,
            max_field_size=HEADER_LIMIT,
        )
        self._runner = web.ServerRunner(server, shutdown_timeout=1.0)
        await self._runner.setup()
        try:
            self._listening = await asyncio.get_running_loop().create_server(
                lambda: self._connection(server), host, port
            )
        except (OSError, OverflowError) as error:
            await self.stop()
            raise ListenError(_cannot_listen(host, port, error)) from error
        for listener in self._listening.sockets:  # what is accepted inherits it
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(self._deadline * 1000))

    @property
    def addresses(self) -> list[tuple[str, int]]:
        listening = () if self._listening is None else self._listening.sockets
        return [listener.getsockname()[:2] for listener in listening]

    async def stop(self) -> None:
        self._notices.close()
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def _connection(self, server: web.Server) -> asyncio.Protocol:
        """A new connection; those that have been here longest make room for it."""
        here = server.connections
        for connection in here[: max(0, len(here) + 1 - self._connections)]:
            if connection.transport is not None:
                connection.transport.abort()
        return server()

    # --- answers

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        answer = self._routes.get(request.path)
        if answer is None:
            return _error(404, f"there is no {request.path[:80]} here; / lists what there is")
        if request.method not in ("GET", "HEAD"):
            response = _error(405, "everything here is read-only: GET or HEAD")
            response.headers["Allow"] = "GET, HEAD"
            return response
        if request.can_read_body:
            return _error(413, "a request with a body is not accepted here")
        try:
            return await answer(request)
        except Exception as error:  # noqa: BLE001 - a fault in one answer must not look like a dead daemon
            self._log.exception("request failed", path=request.path, error=str(error))
            return _error(500, "internal error; the daemon's log has it")

    async def _metrics(self, request: web.BaseRequest) -> web.Response:
        """A page that is not renewed is not served: its numbers would look alive."""
        page = self._holder.page
        age = self._clock().boottime - page.made.boottime
        if age > self._holder.snapshot.service.fresh_for:
            return _error(503, f"the numbers are {age:.0f} s old: the daemon answers but judges no more; see its log")
        headers = request.headers
        openmetrics, compressed = self._form(headers.get("Accept", ""), headers.get("Accept-Encoding", ""))
        if openmetrics:
            kind, body = OPENMETRICS, page.openmetrics_gzip if compressed else page.openmetrics
        else:
            kind, body = TEXT, page.text_gzip if compressed else page.text
        about = {"Content-Type": kind, "Vary": VARY}
        if compressed:
            about["Content-Encoding"] = "gzip"
        return web.Response(body=body, headers=about)

    async def _heartbeat(self, _: web.BaseRequest) -> web.Response:
        code, document = status.heartbeat(self._holder.snapshot, self._clock())
        return _json(document, code)

    async def _healthz(self, _: web.BaseRequest) -> web.Response:
        return _json({"alive": True, "simulated": self._holder.snapshot.service.simulated})

    async def _readyz(self, _: web.BaseRequest) -> web.Response:
        snapshot = self._holder.snapshot
        return _json({"ready": snapshot.ready, "simulated": snapshot.service.simulated}, 200 if snapshot.ready else 503)

    async def _status(self, _: web.BaseRequest) -> web.Response:
        return _json(status.status(self._holder.snapshot, self._clock()))

    async def _gpus(self, _: web.BaseRequest) -> web.Response:
        return _json(status.gpus(self._holder.snapshot, self._clock()))

    async def _findings(self, _: web.BaseRequest) -> web.Response:
        return _json(status.findings(self._holder.snapshot))

    async def _events_since(self, request: web.BaseRequest) -> web.Response:
        try:
            since = parse_since(request.query.get("since", "0"))
        except ValueError as error:
            return _error(400, str(error))
        try:
            async with asyncio.timeout(self._deadline):
                happened = await self._events(since, EVENTS_LIMIT + 1)
        except TimeoutError:
            return _error(504, f"the ledger did not answer within {self._deadline:g} s")
        document = status.events(self._holder.snapshot, happened[:EVENTS_LIMIT])
        return _json(document | {"truncated": len(happened) > EVENTS_LIMIT})

    async def _notice(self, request: web.BaseRequest) -> web.Response:
        try:
            seconds = float(request.query.get("wait", "0"))
        except ValueError:
            seconds = math.nan
        if not 0.0 <= seconds <= WAIT_MOST:
            return _error(400, f"wait= expects the seconds to wait, 0 to {WAIT_MOST:.0f}")
        tag = request.query.get("tag", "").strip('"')
        if seconds and not await self._notices.wait(seconds, tag):
            return _error(503, "too many wait already; ask again without wait=, or read notice.json")
        headers = {"ETag": f'"{self._notices.tag}"'}
        return web.Response(body=self._notices.body, content_type=JSON, headers=headers)

    async def _index(self, _: web.BaseRequest) -> web.Response:
        service = self._holder.snapshot.service
        simulated = " (simulated GPUs)" if service.simulated else ""
        return web.Response(text=INDEX.format(node=service.node, simulated=simulated))


def _cannot_listen(host: str, port: int, error: Exception) -> str:
    number = error.errno if isinstance(error, OSError) else None
    advice = {
        errno.EADDRINUSE: "another process has this port (`ss -ltnp` names it); stop it, or listen elsewhere",
        errno.EADDRNOTAVAIL: "no interface of this host has this address",
        errno.EACCES: "ports below 1024 are root's; choose a higher one",
    }.get(number or 0, "check the listen address")
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return f"cannot listen on {place}: {advice} ({error})"
