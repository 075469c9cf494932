"""Who is connected, and who makes room for one too many: the oldest of the greater crowd.

Of those who never asked anything (or not with the right password) and those who asked and may ask again there are
many only if somebody means harm, and it is among them that a place is found: neither who is new and about
to ask nor who asks now and then pays for the other crowd. Who is being answered goes last.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from gpuwarden.publish.web import http as web

if TYPE_CHECKING:  # structlog is for gpuwarden.base.log to import, which keeps it small; OpenSSL for those who want TLS
    from structlog.typing import FilteringBoundLogger

    from gpuwarden.publish.web.tls import Tls

TELL_EVERY = 60.0
"""Seconds between two lines of the log about clients that are refused for one reason."""


class Rank(Enum):
    SILENT = auto()
    IDLE = auto()
    BUSY = auto()


@dataclass(frozen=True, slots=True)
class _Open:
    transport: asyncio.Transport
    tls: Tls | None


class Connections:
    """At most `most` at once. `turned_away`: how many had to make room."""

    def __init__(self, most: int) -> None:
        self.turned_away = 0
        self._most = most
        self._ranks: dict[Rank, dict[object, _Open]] = {rank: {} for rank in Rank}  # each with the oldest first
        self._rank_of: dict[object, Rank] = {}

    def __len__(self) -> int:
        return len(self._rank_of)

    def opened(self, client: object, transport: asyncio.Transport, tls: Tls | None = None) -> None:
        if client in self._rank_of:
            return
        while len(self) >= self._most:
            self._make_room()
        self._rank_of[client] = Rank.SILENT
        self._ranks[Rank.SILENT][client] = _Open(transport, tls)

    def _make_room(self) -> None:
        silent, idle, busy = self._ranks.values()
        crowd = max(silent, idle, key=len) or busy
        oldest = next(iter(crowd))
        transport = crowd[oldest].transport
        self.closed(oldest)
        self.turned_away += 1
        transport.abort()

    def tls(self, client: object) -> Tls | None:
        rank = self._rank_of.get(client)
        return None if rank is None else self._ranks[rank][client].tls

    def ranked(self, client: object, rank: Rank) -> None:
        """It becomes the youngest of this rank."""
        before = self._rank_of.get(client)
        if before is not None:
            self._rank_of[client] = rank
            self._ranks[rank][client] = self._ranks[before].pop(client)

    def closed(self, client: object) -> None:
        rank = self._rank_of.pop(client, None)
        if rank is not None:
            del self._ranks[rank][client]

    def end(self) -> None:
        for here in [here for rank in self._ranks.values() for here in rank.values()]:
            here.transport.abort()


class Refusals:
    """Counts whom nobody answered, by why; the log gets one line a minute for each reason."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        self.counts: Counter[str] = Counter()
        self._log = log
        self._told: dict[str, float] = {}

    def note(self, kind: str, why: str, peer: Any) -> None:
        self.counts[kind] += 1
        now = asyncio.get_running_loop().time()
        if now >= self._told.get(kind, float("-inf")) + TELL_EVERY:
            self._told[kind] = now
            address = peer[0] if isinstance(peer, tuple) and peer else ""
            self._log.info("client refused", kind=kind, why=why, client=address, so_far=self.counts[kind])


class Server(web.Server):
    """aiohttp's, which tells who comes and goes, and lets nobody in whose certificate has a wrong name."""

    def __init__(self, answer: Any, connections: Connections, refusals: Refusals, **options: Any) -> None:
        super().__init__(answer, **options)
        self._here = connections
        self._refusals = refusals

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        transport.set_write_buffer_limits(
            high=1, low=0
        )  # an answer is taken when nothing of it waits here any more; 0 stops TLS
        if transport.get_extra_info("sslcontext") is None:
            self._here.opened(handler, transport)
            return
        tls = self._here.tls(handler)  # None: it had to make room a moment ago
        if tls is None or (why := tls.refusal(transport.get_extra_info("peercert"))):
            if tls is not None:
                self._refusals.note("name", why, transport.get_extra_info("peername"))
            transport.abort()

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self._here.closed(handler)
