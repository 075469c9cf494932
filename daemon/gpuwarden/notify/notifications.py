"""Notifications inside the daemon: events are queued on disk in both modes, and one worker task per receiver delivers them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path

from gpuwarden.base.log import get_logger
from gpuwarden.base.threads import detached
from gpuwarden.config.notify import Group, NotifyOptions
from gpuwarden.health.model import Event
from gpuwarden.health.state import State
from gpuwarden.notify.delivery import Receiver, Result
from gpuwarden.notify.grouping import Grouping
from gpuwarden.notify.messages import Origin, message
from gpuwarden.notify.store import QueueStore
from gpuwarden.notify.worker import DeliveryWorker
from gpuwarden.publish.snapshot import ReceiverState

log = get_logger()

QUEUE = "notify.db"
DROPPED = "dropped"
"""The count of messages dropped for room in the queue, beside the counts by result."""
_FAILED_PAUSE = 60.0  # seconds


class Notifications:
    """`folder`: where the queue is. `pods`: messages have their names. Without receivers nothing is opened, and nothing runs."""

    def __init__(self, options: NotifyOptions, origin: Origin, folder: Path, *, pods: bool = False) -> None:
        self._origin = origin
        self._pods = pods
        self._path = folder / QUEUE
        self._groups: dict[str, tuple[Group, ...]] = {}
        self._receivers: dict[str, Receiver] = {}
        for name, webhook in options.webhook.items():
            from gpuwarden.notify.webhook import WebhookReceiver  # noqa: PLC0415 - only where there are any

            self._add(f"webhook.{name}", webhook.events, WebhookReceiver(webhook))
        for name, program in options.exec.items():
            from gpuwarden.notify.program import ProgramReceiver  # noqa: PLC0415 - as above

            self._add(f"exec.{name}", program.events, ProgramReceiver(program))
        self._grouping = Grouping()
        self._store: QueueStore | None = None
        self._workers: list[DeliveryWorker] = []
        self._tasks: list[asyncio.Task[None]] = []

    def _add(self, target: str, events: tuple[Group, ...], receiver: Receiver) -> None:
        self._groups[target] = events
        self._receivers[target] = receiver

    # --- life

    def run(self) -> None:
        if self._receivers:
            store = self._opened()
            self._workers = [DeliveryWorker(target, receiver, store) for target, receiver in self._receivers.items()]
            self._tasks = [asyncio.create_task(self._tend(worker), name=worker.target) for worker in self._workers]

    async def stop(self, within: float) -> None:
        """Undelivered messages stay in the queue."""
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._store is not None:
            await asyncio.wait((detached("notify-close", self._store.close),), timeout=within)

    async def _tend(self, worker: DeliveryWorker) -> None:
        while True:
            try:
                await worker.run()
            except Exception:  # a bug in one of them must end neither it nor the others
                log.exception("notification worker failed unexpectedly", target=worker.target)
                await asyncio.sleep(_FAILED_PAUSE)

    def _opened(self) -> QueueStore:
        if self._store is None:
            self._store = QueueStore(self._path, tuple(self._receivers))
        return self._store

    # --- events

    def send(self, events: Iterable[Event], state: State, shadowed: Callable[[Event], bool] = lambda _: False) -> None:
        """Queues a message for each receiver of the event's group. Never blocks. `state`, `shadowed` as in `Grouping.of`."""
        if not self._receivers:
            return
        grouped = self._grouping.of(events, state, shadowed)
        made = [found for event in grouped if (found := message(event, self._origin, pods=self._pods)) is not None]
        chosen = [(target, one) for group, one in made for target, groups in self._groups.items() if group in groups]
        if chosen:
            self._opened().put(chosen)
            for worker in self._workers:
                worker.wake.set()

    # --- what is published

    def error(self) -> str:
        """What an operator must correct; a receiver that does not answer is not counted as an error of this node."""
        barred = [f"{worker.target}: {worker.state.barred}" for worker in self._workers if worker.state.barred]
        disk = [] if self._store is None or not self._store.error else [self._store.error]
        return "; ".join((*barred, *disk))

    def shown(self) -> tuple[ReceiverState, ...]:
        store = self._store
        if store is None:
            return ()
        return tuple(
            ReceiverState(
                target=worker.target, queued=store.rows[worker.target], error=worker.state.error,
                counts={
                    **{result.value: worker.state.counts[result] for result in Result},
                    DROPPED: store.gone[worker.target],
                },
            )
            for worker in self._workers
        )  # fmt: skip
