"""The verbs of the control socket, for operators."""

from __future__ import annotations

import asyncio
import contextlib
import pwd
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from gpuwarden.base.peer import Peer
from gpuwarden.base.threads import detached
from gpuwarden.collect.collectors import Readers
from gpuwarden.control.durable import Durable
from gpuwarden.control.orders import Service as OrderService
from gpuwarden.control.orders import order_verbs
from gpuwarden.control.record import record_verbs
from gpuwarden.engine.engine import Engine
from gpuwarden.engine.journal import Journal, Step
from gpuwarden.engine.reload import ReloadError
from gpuwarden.health.inventory import accepted
from gpuwarden.health.model import Event
from gpuwarden.ledger.ledger import Ledger
from gpuwarden.ledger.reader import read_only
from gpuwarden.publish import status
from gpuwarden.publish.metrics.exposition import Holder
from gpuwarden.publish.sockets.control import TRY_AGAIN, Verb, VerbError
from gpuwarden_collectors.base import Clock

if TYPE_CHECKING:  # only with --simulate
    from gpuwarden.collect.simulation import Simulation

LEDGER_ANSWERS_WITHIN = 3.0
EVENTS_MOST = 10_000
NAME_FOUND_WITHIN = 1.0


class Service(OrderService, Protocol):
    """The parts of the daemon that the verbs need."""

    engine: Engine
    journal: Journal
    ledger: Ledger
    holder: Holder
    readers: Readers

    async def reload(self) -> str: ...


class Verbs:
    def __init__(self, service: Service, ledger: Path, simulation: Simulation | None, clock: Clock) -> None:
        self._service = service
        self._ledger = ledger
        self._simulation = simulation
        self._clock = clock
        self._reading: asyncio.Future[list[Event]] | None = None
        self._turn = asyncio.Lock()

    def table(self) -> Mapping[str, Verb]:
        orders = {"ack": self._acknowledge, "accept": self._accept, **order_verbs(self._service, _name, self._clock)}
        return {
            "status": self._status,
            "events": self._events,
            "inventory": self._inventory,
            "inject": self._inject,
            "reload": self._reload,
            **Durable(self._service.ledger.commit, self._clock).table(orders),
            **record_verbs(self._service, self._clock),
        }

    async def events_since(self, since: float, limit: int, *, newest: bool = False) -> list[Event]:
        """Return the first (or `newest`) `limit` events from the ledger, or from memory while it is unreadable."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEDGER_ANSWERS_WITHIN), self._turn:
                if self._reading is None or self._reading.done():  # a hung read costs one thread
                    self._reading = detached("events", lambda: self._from_ledger(since, limit, newest=newest))
                    await asyncio.wait((self._reading,))
                    if self._reading.exception() is None:
                        return self._reading.result()
        events = [event for event in self._service.journal.recent if event.at.wall >= since]
        return events[-limit:] if newest else events[:limit]

    def _from_ledger(self, since: float, limit: int, *, newest: bool) -> list[Event]:
        with read_only(self._ledger) as reader:
            return [recorded.event for recorded in reader.events(since=since, limit=limit, newest=newest)]

    async def _status(self, _: dict[str, Any], __: Peer) -> Any:
        """The document of /v1/status, plus what only operators see: who scrapes the metrics, and where the ledger is."""
        holder, now = self._service.holder, self._clock()
        own = {"scraped": status.scraped(holder.scraped, now), "state_dir": str(self._ledger.parent)}
        return status.status(holder.snapshot, now) | own

    async def _events(self, arguments: dict[str, Any], _: Peer) -> Any:
        since, limit = arguments.get("since"), arguments.get("limit", 1000)
        if not isinstance(since, int | float | None) or not isinstance(limit, int) or not 0 < limit <= EVENTS_MOST:
            raise VerbError(f"events needs a `since` in Unix time, or null, and a `limit` of 1 to {EVENTS_MOST}")
        happened = await self.events_since(since or 0.0, limit, newest=bool(arguments.get("newest")))
        return status.events(self._service.holder.snapshot, happened)["events"]

    async def _acknowledge(self, arguments: dict[str, Any], peer: Peer) -> Any:
        finding = arguments.get("finding")
        if not isinstance(finding, str):
            raise VerbError("ack needs the id of a finding; `gpuwarden status` lists them")
        by = await _name(peer.uid)
        try:
            event = self._service.engine.acknowledge(finding, by, self._clock())
        except ValueError as error:
            raise VerbError(str(error)) from error
        self._service.journal.append([event], step=Step.NOW)
        return f"acknowledged: {event.key}"

    async def _inventory(self, _: dict[str, Any], __: Peer) -> Any:
        return self._service.engine.inventory(self._clock())

    async def _accept(self, _: dict[str, Any], __: Peer) -> Any:
        try:
            events = self._service.engine.accept_inventory(self._clock())
        except ValueError as error:
            raise VerbError(str(error), TRY_AGAIN) from error
        self._service.journal.append(events, step=Step.NOW)
        return accepted(events)

    async def _reload(self, _: dict[str, Any], __: Peer) -> Any:
        try:
            return await self._service.reload()
        except ReloadError as error:
            raise VerbError(str(error)) from error

    async def _inject(self, arguments: dict[str, Any], _: Peer) -> Any:
        if self._simulation is None:
            raise VerbError("faults are injected into simulated GPUs only, and this daemon watches real ones")
        words, gpu = arguments.get("fault"), arguments.get("gpu")
        if not (isinstance(words, list) and all(isinstance(word, str) for word in words)):
            raise VerbError("inject needs a fault; `gpuwarden inject --help` lists them")
        if not isinstance(gpu, int | None):
            raise VerbError("inject needs a GPU as a number, or none")
        try:
            done = self._simulation.inject(words, gpu, self._clock().boottime)
        except ValueError as error:
            raise VerbError(str(error)) from error
        self._service.readers.read_everything()
        return done


async def _name(uid: int) -> str:
    """The user's name on the host, or the uid if it has none or the directory server does not answer."""
    looking = detached("name", lambda: pwd.getpwuid(uid).pw_name)
    await asyncio.wait((looking,), timeout=NAME_FOUND_WITHIN)
    return looking.result() if looking.done() and looking.exception() is None else f"uid {uid}"
