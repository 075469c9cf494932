"""The HTTP pages: read-only, GET and HEAD, no request bodies. They show the holder's snapshot and compute only ages."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from gpuwarden.base.log import get_logger
from gpuwarden.health.model import Event
from gpuwarden.publish import status
from gpuwarden.publish.metrics.exposition import Holder
from gpuwarden.publish.notices import WAIT_MOST, Notices
from gpuwarden.publish.snapshot import Clients
from gpuwarden.publish.web import http as web
from gpuwarden.publish.web.connections import Refusals
from gpuwarden.publish.web.endpoints import listing
from gpuwarden.publish.web.front_page import HEADERS, front_page
from gpuwarden.publish.web.guard import CHECK_EVERY, Guard
from gpuwarden.publish.web.listener import GuardError, Limits, Listener, ListenError
from gpuwarden.publish.web.response import Response
from gpuwarden.publish.web.trimming import Trimming
from gpuwarden.publish.web.unsent import Unsent
from gpuwarden_collectors.base import Clock, host_clock
from gpuwarden_collectors.facts import Stamp

log = get_logger()

EventsSince = Callable[[float, int], Awaitable[Sequence[Event]]]
"""(Unix time, maximum number) -> the events since then, oldest first."""

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
JSON = "application/json"
HTML = "text/html; charset=utf-8"
VARY = "Accept, Accept-Encoding"
EVENTS_LIMIT = 1000

INDEX = "gpuwarden on {node}{simulated}\n\n{pages}"


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
    """Parse an Accept or Accept-Encoding header into entries: name, parameters, quality (0: refused)."""
    entries = []
    for entry in header.lower().split(","):
        name, *parameters = entry.replace(" ", "").split(";")
        entries.append((name, parameters, _quality(parameters)))
    return entries


def wants_openmetrics(accept: str) -> bool:
    """Return True if OpenMetrics 1.0 is accepted, and no other supported format is preferred."""
    openmetrics = text = 0.0
    for media_type, parameters, quality in _accepted(accept):
        versions = [p for p in parameters if p.startswith("version=")]
        if media_type == "application/openmetrics-text" and versions in ([], ["version=1.0.0"]):
            openmetrics = max(openmetrics, quality)
        elif media_type in ("text/plain", "text/*", "*/*"):
            text = max(text, quality)
    return openmetrics > 0 and openmetrics >= text


def wants_gzip(accept_encoding: str) -> bool:
    qualities = {coding: quality for coding, _, quality in _accepted(accept_encoding)}
    return qualities.get("gzip", qualities.get("*", 0.0)) > 0


def parse_since(text: str) -> float:
    """Return the Unix time of `since=`: a number, or RFC 3339 (UTC without a zone). Raises ValueError."""
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


def _json(document: object, code: int = 200) -> Response:
    return Response(status.to_json(document), JSON, status=code)


def _error(code: int, message: str) -> Response:
    return _json({"error": message}, code)


class Web:
    """The web server. `config`: the web-config file, if configured; checked for changes every `check_every` seconds.

    The deadline of the limits also applies to the reading of events and to the check of a login.
    """

    def __init__(
        self,
        holder: Holder,
        events: EventsSince,
        *,
        clock: Clock = host_clock,
        notices: Notices | None = None,
        config: Path | None = None,
        limits: Limits | None = None,
        check_every: float = CHECK_EVERY,
    ) -> None:
        self._holder = holder
        self._events = events
        self._clock = clock
        self._notices = notices or Notices()
        limits = limits or Limits()
        self._deadline = limits.deadline
        self._check_every = check_every
        self._failure: ListenError | None = None
        self._opening: asyncio.Task[None] | None = None
        self.refusals = Refusals()
        trimming = Trimming()
        self.unsent = Unsent(trimming)
        self._guard = Guard(config, clock, deadline=limits.deadline, every=check_every)
        holder.clients = lambda: Clients(turned_away=self.turned_away, refused=dict(self.refusals.counts))
        self._listener = Listener(self._answer, self._guard, self.refusals, limits, trimming)
        self._form = lru_cache(64)(lambda accept, encoding: (wants_openmetrics(accept), wants_gzip(encoding)))
        self._routes: dict[str, Callable[[web.BaseRequest], Awaitable[Response]]] = {
            "/": self._index,
            "/metrics": self._metrics,
            "/heartbeat": self._heartbeat,
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            "/-/healthy": self._healthz,
            "/-/ready": self._readyz,
            "/v1/status": self._status,
            "/v1/gpus": self._gpus,
            "/v1/findings": self._findings,
            "/v1/events": self._events_since,
            "/v1/notice": self._notice,
        }

    # --- start and stop

    async def start(self, host: str, port: int, *, or_later: bool = False) -> None:
        """Listen on the address. Raises ListenError.

        With `or_later` it retries instead, since a node without a judge is worse than a node without scrapes. Causes
        are a faulty web-config file, with which nothing may be served, a port in use, or an interface that is down.
        """
        try:
            await self._listener.start(host, port)
        except ListenError as error:
            if not or_later:
                raise
            self._failure = error
            log.error("web server not started; nothing is served yet", reason=str(error))  # noqa: TRY400 - the reason is all
            self._opening = asyncio.create_task(self._open_later(host, port))

    async def _open_later(self, host: str, port: int) -> None:
        while self._failure is not None:
            await asyncio.sleep(self._check_every)
            try:
                await self._listener.start(host, port)
                self._failure = None
            except ListenError as error:
                self._failure = error
        log.info("serving", listen=self.addresses)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        return self._listener.addresses

    @property
    def turned_away(self) -> int:
        """Connections closed to make room for others."""
        return self._listener.connections.turned_away + self.unsent.turned_away

    def error(self, now: Stamp) -> str:
        """Return the fault of the web-config file or its certificate; "" if there is none."""
        if isinstance(self._failure, GuardError):
            return f"{self._failure}; nothing is served until it is corrected"
        return self._guard.error(now)

    def port_error(self) -> str:
        """Return why nothing listens on the address; "" if something does, or if the web-config file is the cause."""
        is_of_file = self._failure is None or isinstance(self._failure, GuardError)
        return "" if is_of_file else f"{self._failure}; nothing is served until then"

    async def stop(self) -> None:
        self._notices.close()
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        await self._listener.stop()

    # --- responses

    async def _answer(self, request: web.BaseRequest) -> Response:
        connections, handler = self._listener.connections, request.protocol
        connections.asked(handler)
        refusal = await self._guard.refusal(request)
        if refusal is not None:
            self.refusals.note(refusal.kind, refusal.message, request.get_extra_info("peername"))
            response = _error(refusal.code, refusal.message)
            response.headers.update(refusal.headers)
        else:
            connections.spoke(handler, answering=True)
            try:
                response = await self._routed(request)
            finally:
                connections.spoke(handler, answering=False)
        response.headers.update(self._guard.headers)
        if self._guard.outdated(request):
            response.force_close()
        await self._send(request, response)
        return response

    async def _send(self, request: web.BaseRequest, response: Response) -> None:
        """Send the response and wait until the client has taken it. The next request waits too, which bounds memory."""
        sending = self.unsent.begin(request.transport, response.body)
        try:
            await response.prepare(request)
            *first, last = response.pieces(request.method)
            for piece in first:
                await response.write(piece)
                await request.writer.drain()
                if sending is not None:
                    sending.took()
            await response.write_eof(last)  # type: ignore[arg-type]  # it takes what `write` takes
            await request.writer.drain()
        finally:
            self.unsent.forget(sending)

    async def _routed(self, request: web.BaseRequest) -> Response:
        page = self._routes.get(request.path)
        if page is None:
            return _error(404, f"there is no page {request.path[:80]}; / lists all")
        if request.method not in ("GET", "HEAD"):
            response = _error(405, "all pages are read-only: use GET or HEAD")
            response.headers["Allow"] = "GET, HEAD"
            return response
        if request.can_read_body:
            return _error(413, "a request with a body is not accepted")
        try:
            return await page(request)
        except Exception as error:  # an error in one page must not look like a dead daemon
            log.exception("request failed", path=request.path, error=str(error))
            return _error(500, "internal error; the daemon's log has it")

    async def _metrics(self, request: web.BaseRequest) -> Response:
        """Serve `/metrics`. A page that is no longer renewed is not served, since its numbers would look current."""
        page, now = self._holder.page, self._clock()
        age = now.boottime - page.made.boottime
        if age > self._holder.snapshot.service.fresh_for:
            return _error(503, f"the page is {age:.0f} s old: the daemon answers but no longer judges; see its log")
        headers = request.headers
        self._holder.scraped = now, headers.get("User-Agent", "")
        openmetrics, compressed = self._form(headers.get("Accept", ""), headers.get("Accept-Encoding", ""))
        if openmetrics:
            kind, body = OPENMETRICS, page.openmetrics_gzip if compressed else page.openmetrics
        else:
            kind, body = TEXT, page.text_gzip if compressed else page.text
        return Response(body, kind, headers={"Vary": VARY, **({"Content-Encoding": "gzip"} if compressed else {})})

    async def _heartbeat(self, _: web.BaseRequest) -> Response:
        code, document = status.heartbeat(self._holder.snapshot, self._clock())
        return _json(document, code)

    async def _healthz(self, _: web.BaseRequest) -> Response:
        return _json({"alive": True, "simulated": self._holder.snapshot.service.simulated})

    async def _readyz(self, _: web.BaseRequest) -> Response:
        snapshot = self._holder.snapshot
        return _json({"ready": snapshot.ready, "simulated": snapshot.service.simulated}, 200 if snapshot.ready else 503)

    async def _status(self, _: web.BaseRequest) -> Response:
        return _json(status.status(self._holder.snapshot, self._clock()))

    async def _gpus(self, _: web.BaseRequest) -> Response:
        return _json(status.gpus(self._holder.snapshot, self._clock()))

    async def _findings(self, _: web.BaseRequest) -> Response:
        return _json(status.findings(self._holder.snapshot))

    async def _events_since(self, request: web.BaseRequest) -> Response:
        try:
            since = parse_since(request.query.get("since", "0"))
        except ValueError as error:
            return _error(400, str(error))
        try:
            async with asyncio.timeout(self._deadline):
                events = await self._events(since, EVENTS_LIMIT + 1)
        except TimeoutError:
            return _error(504, f"the ledger did not respond within {self._deadline:g} s")
        document = status.public_events(self._holder.snapshot, events[:EVENTS_LIMIT])
        return _json(document | {"truncated": len(events) > EVENTS_LIMIT})

    async def _notice(self, request: web.BaseRequest) -> Response:
        try:
            seconds = float(request.query.get("wait", "0"))
        except ValueError:
            seconds = math.nan
        if not 0.0 <= seconds <= WAIT_MOST:
            return _error(400, f"wait= expects the seconds to wait, 0 to {WAIT_MOST:.0f}")
        tag = request.query.get("tag", "").strip('"')
        if seconds and not await self._notices.wait(seconds, tag):
            return _error(503, "too many clients wait already; try again without wait=, or read notice.json")
        headers = {"ETag": f'"{self._notices.tag}"'}
        return Response(self._notices.body, JSON, headers=headers)

    async def _index(self, request: web.BaseRequest) -> Response:
        if "text/html" in request.headers.get("Accept", ""):
            page = front_page(status.status(self._holder.snapshot, self._clock()))
            return Response(page.encode("utf-8", "replace"), HTML, headers={"Vary": "Accept", **HEADERS})
        service = self._holder.snapshot.service
        simulated = " (simulated GPUs)" if service.simulated else ""
        return Response(
            INDEX.format(node=service.node, simulated=simulated, pages=listing()).encode("utf-8", "replace"),
            "text/plain; charset=utf-8",
        )
