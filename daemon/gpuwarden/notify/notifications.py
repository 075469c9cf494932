"""Telling others inside the daemon: what happens is queued on disk in both modes, and a task for each who is told works it off."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from gpuwarden.base.log import get_logger
from gpuwarden.base.threads import detached
from gpuwarden.config.notify import Group, NotifyOptions
from gpuwarden.health.model import Event
from gpuwarden.notify.delivery import Receiver, Result
from gpuwarden.notify.messages import Teller, message
from gpuwarden.notify.program import ProgramReceiver
from gpuwarden.notify.store import QueueStore
from gpuwarden.notify.webhook import WebhookReceiver
from gpuwarden.notify.worker import Courier
from gpuwarden.publish.snapshot import Told

log = get_logger("gpuwarden")

QUEUE = "notify.db"
DROPPED = "dropped"
"""What had to make room in the queue, beside what can come of a message."""
_FAILED_PAUSE = 60.0  # seconds


class Notifying:
    """`folder`: where the queue is. With nobody to be told nothing is opened, and nothing runs."""

    def __init__(self, options: NotifyOptions, teller: Teller, folder: Path) -> None:
        self._teller = teller
        self._path = folder / QUEUE
        self._wants: dict[str, tuple[Group, ...]] = {}
        self._receivers: dict[str, Receiver] = {}
        for name, webhook in options.webhook.items():
            self._add(f"webhook.{name}", webhook.events, WebhookReceiver(webhook))
        for name, program in options.exec.items():
            self._add(f"exec.{name}", program.events, ProgramReceiver(program))
        self._store: QueueStore | None = None
        self._couriers: list[Courier] = []
        self._tasks: list[asyncio.Task[None]] = []

    def _add(self, target: str, events: tuple[Group, ...], receiver: Receiver) -> None:
        self._wants[target] = events
        self._receivers[target] = receiver

    # --- life

    def run(self) -> None:
        if self._receivers:
            store = self._opened()
            self._couriers = [Courier(target, receiver, store) for target, receiver in self._receivers.items()]
            self._tasks = [asyncio.create_task(self._tend(courier), name=courier.target) for courier in self._couriers]

    async def stop(self, within: float) -> None:
        """What was not told stays in the queue."""
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._store is not None:
            await asyncio.wait((detached("notify-close", self._store.close),), timeout=within)

    async def _tend(self, courier: Courier) -> None:
        while True:
            try:
                await courier.run()
            except Exception:  # a fault of ours in one of them must end neither it nor the others
                log.exception("a notification failed unexpectedly", target=courier.target)
                await asyncio.sleep(_FAILED_PAUSE)

    def _opened(self) -> QueueStore:
        if self._store is None:
            self._store = QueueStore(self._path, tuple(self._receivers))
        return self._store

    # --- what happens

    def enforces(self, enforce: bool) -> None:
        """The mode was changed under the running daemon."""
        self._teller = replace(self._teller, mode="enforce" if enforce else "observe")

    def tell(self, events: Iterable[Event]) -> None:
        """Never blocks."""
        if not self._receivers:
            return
        made = [found for event in events if (found := message(event, self._teller)) is not None]
        chosen = [(target, one) for group, one in made for target, groups in self._wants.items() if group in groups]
        if chosen:
            self._opened().put(chosen)
            for courier in self._couriers:
                courier.wake.set()

    # --- what is published

    def trouble(self) -> str:
        """What only a person can mend; whoever is away is no fault of this node."""
        barred = [f"{courier.target}: {courier.told.barred}" for courier in self._couriers if courier.told.barred]
        disk = [] if self._store is None or not self._store.trouble else [self._store.trouble]
        return "; ".join((*barred, *disk))

    def shown(self) -> tuple[Told, ...]:
        store = self._store
        if store is None:
            return ()
        return tuple(
            Told(
                target=courier.target, queued=store.rows[courier.target], trouble=courier.told.trouble,
                counts={
                    **{result.value: courier.told.counts[result] for result in Result},
                    DROPPED: store.gone[courier.target],
                },
            )
            for courier in self._couriers
        )  # fmt: skip
