"""The journal: the only way in which events change the state of the daemon.

    append --> every projection folds --> recent events --> ledger --> outputs --> perhaps a step

A projection is a state that is computed as a fold of events: health, policy, features. All of them fold all events in
the same order, so each always equals the fold of the ledger. A start, or a ledger that is opened late, folds the ledger
again.
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
        """Fold one event into the state."""

    def rebuilding(self) -> AbstractContextManager[None]:
        """Reset the state, except what no event contains; the events folded within the context rebuild it."""

    def checkpoint(self, now: Stamp) -> list[Event]:
        """The shortest list of events whose fold gives the state."""


class Step(Enum):
    """When the engine makes a step after an append. A step that is in progress is completed first."""

    NONE = auto()
    SOON = auto()
    """At once, but at most one step in `STEP_SPACING`: for events that may come in storms."""
    NEXT = auto()
    """In the next iteration of the event loop: for notices, so that the outputs act first."""
    NOW = auto()
    """Before `append` returns: for events that an operator waits for."""


class Append(Protocol):
    """The signature of `Journal.append`, for code that decides on events when a step follows from them."""

    def __call__(self, events: Iterable[Event], *, step: Step) -> None: ...


class Journal:
    """Passes events, in one order, to the projections, the ledger and the outputs.

    `outputs` get all events and must not block; an output may append events that follow. `projections` fold and are
    checkpointed in the order health, policy, features. Both are set after all of them were created. `request_step` is
    called with the requested step, unless it is NONE.
    """

    projections: tuple[Projection, ...] = ()
    outputs: tuple[Callable[[Iterable[Event]], None], ...] = ()

    def __init__(self, ledger: Ledger, *, request_step: Callable[[Step], None], clock: Clock) -> None:
        self.recent: deque[Event] = deque(maxlen=RECENT_MOST)
        self.recalled = False
        """Whether the events from before this start, which the ledger has, are folded into the state."""
        self._ledger = ledger
        self._request_step = request_step
        self._clock = clock
        self.recorded: Callable[[], bool] = lambda: True
        """Returns whether checkpoints are complete. An incomplete one is not written: the ledger keeps the events."""
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
        """Append events and pass them to the outputs. `by`: the projection that has folded them already. `position`:
        how far the kernel log was read, these events included.
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
        for output in self.outputs:  # while the ledger writes in its thread
            try:
                output(events)
            except Exception:  # the events are recorded: continue with the other outputs and the step
                log.exception("events not handed on", output=getattr(output, "__qualname__", repr(output)))
        if events and step is not Step.NONE:
            self._request_step(step)

    def tend(self) -> None:
        """Write a checkpoint if one is due, otherwise retry failed writes. Called once in each step,
        after its events.
        """
        if self.recalled and self._ledger.checkpoint_due(self._clock()):
            self.write_checkpoint()
        else:
            self._ledger.tend()

    def recall(self, memory: Memory, *, late: bool = False) -> None:
        """Rebuild every projection as the fold of the ledger's events and those since the start. `late`: the ledger was
        opened or recreated while the daemon was running, and lacks earlier events.
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
        if self.recorded():  # after the checkpoint was made, which may have failed
            self._ledger.append(checkpoint=checkpoint)
        else:
            self._ledger.tend()

    def checkpoint(self, now: Stamp) -> list[Event]:
        return [event for projection in self.projections for event in projection.checkpoint(now)]

    def _fold(self, events: Iterable[Event], projections: Sequence[Projection]) -> None:
        """Fold events into these projections. If one projection raises, the others still fold the event."""
        for event in events:
            for projection in projections:
                try:
                    projection.fold(event)
                except Exception:
                    log.exception("event not folded", kind=event.kind, projection=type(projection).__name__)
