"""Which findings are notified: of an incident the finding that it begins with, which names those that follow from it.

A consequence that is raised with its cause, or later, is not notified, and neither is its end. One that was notified before its cause
came is named by the cause, and its own end is notified. A consequence that is still there when its cause has ended is notified then.

After a restart it is not known which were notified. Those that are still there are notified once more, as soon as this run of the daemon
has found them again; the ends of the others are notified, once more than needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from gpuwarden.health.checkpoint import raised_again
from gpuwarden.health.memory import Follows, State, Track
from gpuwarden.health.model import Event, EventKind, Evidence, Key, Severity

ACTIVE = "active"
"""Kind of the event that lists findings of before a restart: the ledger has none of it."""
SINGLY_MOST = 10
"""Findings of before a restart that are notified one by one; the others are in one list."""
_ENDS = (EventKind.CLEARED, EventKind.ACKNOWLEDGED)
_NAMED = 8

Shadowed = Callable[[Event], bool]


class Grouping:
    def __init__(self) -> None:
        self._sent: set[Key] = set()
        """Findings that were notified in this run of the daemon."""
        self._held: set[Key] = set()
        """Consequences that were raised in this run and not notified."""
        self._earlier: set[Key] = set()
        """Findings of earlier runs, which may have been notified."""

    def of(self, events: Iterable[Event], state: State, shadowed: Shadowed = lambda _: False) -> list[Event]:
        """The events to be notified; nobody is warned of what is in shadow. `state`: of the judge, with these events."""
        self._earlier |= state.moments.unconfirmed.keys()
        kept = [event for event in events if self._kept(event, state.moments.follows)]
        for keys in (self._sent, self._held, self._earlier):
            keys.intersection_update(state.tracks)
        left_over = self._raised([state.tracks[key] for key in self._held], state)
        return [_named(event, state.moments.follows) for event in (*kept, *left_over) if not shadowed(event)]

    def again(self, state: State, shadowed: Shadowed = lambda _: False) -> list[Event]:
        """Findings that were raised before this run, found again, and not yet notified in it: failures first."""
        tracks = [track for key, track in state.tracks.items() if key not in self._held]
        events = [event for event in self._raised(tracks, state) if not shadowed(event)]
        events.sort(key=lambda event: event.data["severity"] != Severity.FAILURE)
        singly = [_named(event, state.moments.follows) for event in events[:SINGLY_MOST]]
        return [*singly, *_listed(events[SINGLY_MOST:])]

    def _kept(self, event: Event, follows: Follows) -> bool:
        key = event.key
        if key is None:
            return True
        if event.kind in _ENDS:
            held = key in self._held
            self._sent.discard(key)
            self._held.discard(key)
            return not held
        if event.kind == EventKind.RAISED:
            if key in follows:
                if key not in self._sent | self._earlier:
                    self._held.add(key)
                return False
            self._sent.add(key)
        return True

    def _raised(self, tracks: Iterable[Track], state: State) -> Iterator[Event]:
        """Yields findings that are there, follow from nothing, and were not notified in this run."""
        for track in tracks:
            key = track.key
            if (
                track.raised
                and key not in self._sent
                and key not in state.moments.follows
                and key not in state.moments.unconfirmed
            ):
                self._sent.add(key)
                self._held.discard(key)
                yield raised_again(track, state.boot_id)


def _named(event: Event, follows: Follows) -> Event:
    """Add the names of what follows from the finding."""
    if event.kind != EventKind.RAISED or not follows:
        return event
    names = sorted(str(key) for key, (cause, _) in follows.items() if cause == event.key)
    return replace(event, data={"consequences": _list(names), **event.data}) if names else event


def _listed(events: list[Event]) -> Iterator[Event]:
    if events:
        newest = max(events, key=lambda event: event.at.wall)
        data: Evidence = {"count": len(events), "findings": _list([str(event.key) for event in events])}
        yield Event(kind=ACTIVE, at=newest.at, boot_id=newest.boot_id, data=data)


def _list(names: list[str]) -> str:
    more = [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return ", ".join((*names[:_NAMED], *more))
