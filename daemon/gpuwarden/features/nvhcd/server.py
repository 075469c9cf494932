"""nvidia-resiliency-ext's node health check: ft_launcher calls it before each rendezvous of a job.

A node that gpuwarden excludes fails the check, and the job continues with a spare. Any other state passes: unknown
health, a warning, mode observe. It reads only what the daemon published.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwarden.base.accepting import accepted
from gpuwarden.base.peer import peer_of
from gpuwarden.features.nvhcd.connection import Connection, Connections
from gpuwarden.features.nvhcd.wire import Response, encoded
from gpuwarden.integrations.process import left
from gpuwarden.integrations.published import Published, Reader

if TYPE_CHECKING:  # structlog is for gpuwarden.base.log to import, which keeps it small
    from structlog.typing import FilteringBoundLogger

NAME = "nvhcd"
"""Name of the actuator whose marker counts."""
STOPS_WITHIN = 2.0
"""Seconds. Clients close once they have their response."""
_LOG_EVERY = 60.0  # seconds between two equal lines of the log


@dataclass(frozen=True, slots=True)
class Outcome:
    """The health that clients get.

    `failed`: codes of findings. `unknown`: why this node's health is unknown, empty if it is known.
    """

    failed: tuple[str, ...] = ()
    reason: str = ""
    unknown: str = ""


def outcome(published: Published, *, mode: str) -> Outcome:
    """Derive the outcome from what is published. `mode`: the configured one, used until a verdict has it. Pure."""
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


def response(outcome: Outcome) -> Response:
    """Return the response. The check itself always succeeds; its result is in `output`. The client reads `fail_count`,
    its documentation has `failed_checks`.
    """
    document = {"fail_count": len(outcome.failed), "failed_checks": list(outcome.failed)}
    if outcome.reason:
        document["reason"] = [outcome.reason]
    return Response(success=True, output=json.dumps(document, separators=(",", ":")))


class HealthCheckService:
    def __init__(self, *, reader: Reader, mode: str, log: FilteringBoundLogger) -> None:
        self._reader = reader
        self._mode = mode
        self._log = log
        self._logged: dict[Outcome, float] = {}

    def respond(self) -> bytes:
        """Return the present response, as a message of protobuf."""
        result = outcome(self._reader.read(), mode=self._mode)
        self._log_outcome(result)
        return encoded(response(result))

    def _log_outcome(self, outcome: Outcome) -> None:
        now = time.monotonic()
        if now - self._logged.get(outcome, float("-inf")) < _LOG_EVERY:
            return
        self._logged = {event: at for event, at in self._logged.items() if now - at < _LOG_EVERY} | {outcome: now}
        if outcome.failed:
            self._log.warning("node health check failed", checks=list(outcome.failed), reason=outcome.reason)
        elif outcome.unknown:
            self._log.warning("node health check passed without a verdict", why=outcome.unknown)
        else:
            self._log.info("node health check passed")


class Service:
    """Answers the clients of a listening socket; `connections` has the limits."""

    def __init__(self, service: HealthCheckService) -> None:
        self._service = service
        self._connections = Connections()
        self._opening: set[asyncio.Task[None]] = set()

    async def serve(self, listener: socket.socket, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then still answer connected clients, within `STOPS_WITHIN` seconds."""
        accepting = asyncio.create_task(self._accept(listener))
        await stop.wait()
        accepting.cancel()
        await asyncio.gather(accepting, *self._opening, return_exceptions=True)
        listener.close()
        await left(self._connections, STOPS_WITHIN)
        self._connections.end()

    async def _accept(self, listener: socket.socket) -> None:
        """Open each connection in a task of its own, so that a slow handshake delays no other client."""
        loop = asyncio.get_running_loop()
        async for sock, _ in accepted(listener):
            task = loop.create_task(self._open(sock))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, sock: socket.socket) -> None:
        try:
            connection = Connection(peer_of(sock).uid, self._connections, self._service.respond)
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, sock)
        except OSError:  # the peer has left
            sock.close()
