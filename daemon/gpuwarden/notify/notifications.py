"""Notifications inside the daemon: events are queued in memory in both modes, and one worker task per receiver delivers them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from gpuwarden.base.log import get_logger
from gpuwarden.config.notify import Group, NotifyOptions
from gpuwarden.health.model import Event, Key
from gpuwarden.health.state import State
from gpuwarden.notify.delivery import Receiver, Result
from gpuwarden.notify.grouping import Grouping
from gpuwarden.notify.messages import Origin, message
from gpuwarden.notify.program import ProgramReceiver
from gpuwarden.notify.queue import Message
from gpuwarden.notify.repair import repair
from gpuwarden.notify.resend import Spacing, lasting
from gpuwarden.notify.webhook import WebhookReceiver
from gpuwarden.notify.worker import DeliveryWorker
from gpuwarden.publish.snapshot import ReceiverState
from gpuwarden_collectors.base import Clock, host_clock

log = get_logger()

DROPPED = "dropped"
"""Key of the count of messages dropped undelivered, in addition to the counts by result."""
RESENT = "notified-again"
"""File in the run directory whose mtime is the time of the last resend."""
_FAILED_PAUSE = 60.0  # seconds


class Notifications:
    """Notifications to all receivers; does nothing if no receiver is configured.

    `folder`: the run directory. `names`: messages may contain names of users, jobs and pods.
    """

    def __init__(
        self, options: NotifyOptions, origin: Origin, folder: Path, *, names: bool = False, clock: Clock = host_clock
    ) -> None:
        self._origin = origin
        self._names = names
        self._clock = clock
        self._groups: dict[str, tuple[Group, ...]] = {}
        self._workers: list[DeliveryWorker] = []
        for name, webhook in options.webhook.items():
            self._add(f"webhook.{name}", webhook.events, WebhookReceiver(webhook))
        for name, program in options.exec.items():
            self._add(f"exec.{name}", program.events, ProgramReceiver(program))
        self._grouping = Grouping()
        self._spacing = Spacing(folder / RESENT) if self._workers else None
        self._checkpoint: Callable[[], Iterable[Event]] = list
        self._subjects: set[str] | None = set()
        """Subjects of messages since the start; None once the lasting states were resent."""
        self._tasks: list[asyncio.Task[None]] = []

    def _add(self, target: str, events: tuple[Group, ...], receiver: Receiver) -> None:
        self._groups[target] = events
        self._workers.append(DeliveryWorker(target, receiver))

    # --- life

    def run(self, checkpoint: Callable[[], Iterable[Event]]) -> None:
        """Start the workers. `checkpoint` returns the journal's, from which the lasting states are resent once."""
        self._checkpoint = checkpoint
        self._tasks = [asyncio.create_task(self._tend(worker), name=worker.target) for worker in self._workers]

    async def stop(self, within: float) -> None:
        """Deliver queued messages for at most `within` seconds; a worker stops at its first failed attempt."""
        for worker in self._workers:
            worker.finish()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=within)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        for worker in self._workers:
            if worker.queue:
                log.warning("stopped with undelivered notifications", target=worker.target, waiting=len(worker.queue))

    async def _tend(self, worker: DeliveryWorker) -> None:
        while True:
            try:
                await worker.run()
            except Exception:  # a bug in one worker must end neither it nor the others
                log.exception("notification worker failed unexpectedly", target=worker.target)
                await asyncio.sleep(_FAILED_PAUSE)
            else:
                return

    # --- events

    def send(
        self,
        events: Iterable[Event],
        state: State,
        shadowed: Callable[[Event], bool] = lambda _: False,
        overridden: Collection[Key] = frozenset(),
    ) -> None:
        """Queue a message for each receiver of the event's group. Never blocks.

        `state`, `shadowed` as in `Grouping.of`, `overridden` as in `repair`.
        """
        if self._spacing is None:
            return
        made = self._messages(self._grouping.of(events, state, shadowed), state, shadowed, overridden)
        if self._subjects is not None:
            self._subjects.update(message.subject for _, message in made)
        if self._tasks and self._spacing.over(self._clock()) and (again := self._again(state, shadowed, overridden)):
            self._spacing.sent()
            made += again
        for group, notification in made:
            for worker in self._workers:
                if group in self._groups[worker.target]:
                    worker.put(notification)

    def _again(
        self, state: State, shadowed: Callable[[Event], bool], overridden: Collection[Key]
    ) -> list[tuple[Group, Message]]:
        """Build messages about findings that were confirmed again and, once all are, the other lasting states.

        The latter are sent only once per run, and only for subjects that had no message in it.
        """
        made = self._messages(self._grouping.again(state, shadowed), state, shadowed, overridden)
        if self._subjects is not None and not state.moments.unconfirmed:
            others = self._messages(lasting(self._checkpoint()), state, shadowed, overridden)
            made += [(group, message) for group, message in others if message.subject not in self._subjects]
            self._subjects = None
        return made

    def _messages(
        self, events: Iterable[Event], state: State, shadowed: Callable[[Event], bool], overridden: Collection[Key]
    ) -> list[tuple[Group, Message]]:
        made = []
        for event in events:
            request = repair(event, self._origin.node, state, shadowed, overridden)
            if (notification := message(event, self._origin, names=self._names, repair=request)) is not None:
                made.append(notification)
        return made

    # --- what is published

    def error(self) -> str:
        """Faults that an operator must correct; a receiver that does not answer is not counted as an error of this node."""
        return "; ".join(f"{worker.target}: {worker.state.barred}" for worker in self._workers if worker.state.barred)

    def shown(self) -> tuple[ReceiverState, ...]:
        return tuple(
            ReceiverState(
                target=worker.target,
                queued=len(worker.queue),
                error=worker.state.error,
                counts={
                    **{result.value: worker.state.counts[result] for result in Result},
                    DROPPED: worker.queue.dropped,
                },
            )
            for worker in self._workers
        )
