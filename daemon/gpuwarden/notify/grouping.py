"""Which findings are notified: of an incident the finding that it begins with, which names those that follow from it.

A consequence that is raised with its cause, or later, is not notified, and neither is its end. One that was notified before its cause
came is named by the cause, and its own end is notified. A consequence that is still there when its cause has ended is notified
then. After a restart it is not known which were notified: their ends are, once more than needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from gpuwarden.health.checkpoint import raised_again
from gpuwarden.health.memory import Follows, State
from gpuwarden.health.model import Event, EventKind, Key

_ENDS = (EventKind.CLEARED, EventKind.ACKNOWLEDGED)
_NAMED = 8


class Grouping:
    def __init__(self) -> None:
        self._held: dict[Key, bool] = {}
        """The consequences, and of which it is certain that they were not notified."""

    def of(
        self, events: Iterable[Event], state: State, shadowed: Callable[[Event], bool] = lambda _: False
    ) -> list[Event]:
        """The events to be notified; nobody is warned of what is in shadow. `state`: of the judge, with these events."""
        kept = [event for event in events if self._kept(event, state.follows)]
        return [_named(event, state.follows) for event in (*kept, *self._left_over(state)) if not shadowed(event)]

    def _kept(self, event: Event, follows: Follows) -> bool:
        key = event.key
        if key is None:
            return True
        if event.kind in _ENDS:
            return not self._held.pop(key, False)
        if event.kind == EventKind.RAISED and key in follows:
            self._held.setdefault(key, True)
            return False
        return True

    def _left_over(self, state: State) -> Iterator[Event]:
        """Consequences that follow from nothing any more and are still there."""
        for key in [key for key in self._held if key not in state.follows]:
            del self._held[key]
            if (track := state.tracks.get(key)) is not None and track.raised:
                yield raised_again(track, state.boot_id)
        for key in state.follows:
            if key in state.tracks:
                self._held.setdefault(key, False)


def _named(event: Event, follows: Follows) -> Event:
    """With what follows from it."""
    if event.kind != EventKind.RAISED or not follows:
        return event
    names = sorted(str(key) for key, (cause, _) in follows.items() if cause == event.key)
    if not names:
        return event
    more = [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return replace(event, data={"consequences": ", ".join((*names[:_NAMED], *more)), **event.data})
