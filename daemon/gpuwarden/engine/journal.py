"""The journal: the one way in which events change what this daemon knows.

    append --> every projection folds --> recent events --> ledger --> log lines, notifications, what a notice begins --> perhaps a step

A projection is a state that is a fold of events: health, policy, those of features. All of them fold all events in one order, so that
at any cut each is the fold of what the ledger holds; a start, or a ledger that was opened late, folds that again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from enum import Enum, auto
from typing import Protocol

from gpuwarden.base.log import get_logger
from gpuwarden.health.model import Event
from gpuwarden.ledger.ledger import Ledger
from gpuwarden.ledger.rows import Memory
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.event_facts import LogPosition
from gpuwarden_collectors.facts import Stamp

RECENT_MOST = 500
"""Events kept in memory, for readers while the ledger cannot be read."""

log = get_logger()


class Projection(Protocol):
    def fold(self, event: Event) -> None:
        """Take one event into the state."""

    def rebuilding(self) -> AbstractContextManager[None]:
        """Start over with nothing but what no event carries; the events that come within are folded."""

    def checkpoint(self, now: Stamp) -> list[Event]:
        """The shortest list of events whose fold gives the state."""


class Step(Enum):
    """When the engine is to make a step because of what was appended. While a step is under way there is no other."""

    NONE = auto()
    SOON = auto()
    """Together with the events of the next moment: for events that may come in storms."""
    NEXT = auto()
    """In the next turn of the loop: for notices, which outputs act on first."""
    NOW = auto()
    """Before `append` returns: for events that an operator waits for."""


class Append(Protocol):
    """The signature of `Journal.append`, for code that decides on events when a step follows from them."""

    def __call__(self, events: Iterable[Event], *, step: Step) -> None: ...


class Journal:
    """Takes events in, in one order, for the ledger, the projections and the outputs.

    `outputs` get all events and must not block; an output may append what follows from them at once. `projections` fold
    and are checkpointed in the order health, policy, features. Both are set once all are made. `request_step` is
    called with the step that is wanted, if any is.
    """

    projections: tuple[Projection, ...] = ()
    outputs: tuple[Callable[[Iterable[Event]], None], ...] = ()

    def __init__(
        self,
        ledger: Ledger,
        *,
        request_step: Callable[[Step], None],
        clock: Clock,
    ) -> None:
        self.recent: deque[Event] = deque(maxlen=RECENT_MOST)
        self.recalled = False
        """Whether what the ledger holds from before this start is part of the state."""
        self._ledger = ledger
        self._request_step = request_step
        self._clock = clock
        self.recorded: Callable[[], bool] = lambda: True
        """Whether a checkpoint has all that projections must remember. While it has not, the ledger keeps the events instead."""
        self._since_start: list[Event] = []  # events to fold again once the ledger is recalled
        self._position: LogPosition | None = None

    def append(
        self,
        events: Iterable[Event],
        *,
        by: Projection | None = None,
        position: LogPosition | None = None,
        step: Step = Step.NONE,
    ) -> None:
        """Append events and hand them to the outputs. `by` has folded them while it decided on them. `position`: how
        far the kernel log was taken in, these events included.
        """
        events = tuple(events)
        self._fold(events, [projection for projection in self.projections if projection is not by])
        self.recent.extend(events)
        if not self.recalled:
            self._since_start.extend(events)
        if position == self._position:
            position = None
        if events or position is not None:
            self._ledger.append(events, position=position)
            self._position = position or self._position
        for output in self.outputs:  # while the ledger writes: a signal may wait for it
            try:
                output(events)
            except Exception:  # the events are recorded: the other outputs, and the step, go on
                log.exception("events not handed on", output=getattr(output, "__qualname__", repr(output)))
        if events and step is not Step.NONE:
            self._request_step(step)

    def tend(self) -> None:
        """Write a checkpoint if one is due, else try again what could not be written. Called once in each step, after
        its events.
        """
        if self.recalled and self._ledger.checkpoint_due(self._clock()):
            self.write_checkpoint()
        else:
            self._ledger.tend()

    def recall(self, memory: Memory, *, late: bool = False) -> None:
        """Rebuild every projection as the fold of what the ledger holds and of what happened since the start.

        `late`: the ledger was opened, or begun again, under the running daemon, and lacks what happened before.
        """
        if not memory.begun:
            with ExitStack() as rebuilding:
                for projection in self.projections:
                    rebuilding.enter_context(projection.rebuilding())
                self._fold((*memory.events, *self._since_start), self.projections)
        self.recalled, self._since_start = True, []
        if late:
            self.write_checkpoint()

    def write_checkpoint(self) -> None:
        checkpoint = self.checkpoint(self._clock())
        if self.recorded():  # asked only now: it may have failed just then
            self._ledger.append(checkpoint=checkpoint)
        else:
            self._ledger.tend()

    def checkpoint(self, now: Stamp) -> list[Event]:
        return [event for projection in self.projections for event in projection.checkpoint(now)]

    def _fold(self, events: Iterable[Event], projections: Sequence[Projection]) -> None:
        """Fold events into these projections. An event that one projection cannot take in is lost to that one alone."""
        for event in events:
            for projection in projections:
                try:
                    projection.fold(event)
                except Exception:
                    log.exception("event not folded", kind=event.kind, projection=type(projection).__name__)
