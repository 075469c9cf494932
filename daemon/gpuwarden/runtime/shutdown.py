"""When the daemon stops: at SIGTERM or SIGINT, or somewhat later if SIGTERM announces the end of its container or
machine.
"""

from __future__ import annotations

import asyncio
import signal
from typing import Protocol

from gpuwarden.base.log import get_logger

LEAVES = 1.5
"""Seconds before the end that are reserved for the daemon's own shutdown."""
POLL = 0.1

log = get_logger()


class Service(Protocol):
    def ends_in(self) -> float:
        """Called on SIGTERM: seconds until the container or the machine ends; 0 if SIGTERM does not announce an end."""

    def jobs_settled(self) -> bool:
        """Return True if no job has to be signalled, and no acknowledgement is awaited."""

    def reload_soon(self) -> None: ...


class Stopping:
    """Handles signals from now on. A second SIGTERM, or SIGINT, stops at once, whatever is still to be done."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._stop = asyncio.Event()
        self._lingering: asyncio.Task[None] | None = None
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._terminated)
        loop.add_signal_handler(signal.SIGINT, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, service.reload_soon)

    async def wait(self, other: asyncio.Event | None = None) -> bool:
        """Wait until the daemon must stop, and return False; or until `other` is set, and return True."""
        both = [asyncio.create_task(event.wait()) for event in (self._stop, other) if event is not None]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for task in both:
            task.cancel()
        if not self._stop.is_set():
            return True
        if self._lingering is not None:
            self._lingering.cancel()
        return False

    def _terminated(self) -> None:
        window = 0.0 if self._lingering is not None else self._service.ends_in()
        if window <= 0.0:
            self._stop.set()
            return
        log.warning("SIGTERM treated as termination notice; notifying jobs before exit", seconds=window)
        self._lingering = asyncio.create_task(self._linger(window))

    async def _linger(self, window: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + max(window - LEAVES, 0.0)
        while loop.time() < end and not self._service.jobs_settled():  # noqa: ASYNC110 - no event signals it
            await asyncio.sleep(POLL)
        self._stop.set()
