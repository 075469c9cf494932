"""Selects the findings to notify: for each incident its root cause, in whose message the consequences are listed.

A consequence that is raised with its cause, or later, is not notified, and neither is its end. If it was notified
before its cause was raised, the cause lists it and its end is notified. One that outlasts its cause is notified
when the cause ends.

After a restart it is unknown which findings were notified. Those still active are notified again as soon as this
run of the daemon has confirmed them; for the others the end is notified, possibly a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from gpuwarden.health.checkpoint import raised_again
from gpuwarden.health.memory import Follows, State, Track
from gpuwarden.health.model import Event, EventKind, Evidence, Key, Severity

ACTIVE = "active"
"""Kind of the event that lists findings from before a restart. Such events are not written to the ledger."""
SINGLY_MOST = 10
"""Findings from before a restart that are notified one by one; the rest is sent as one list."""
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
        """Return the events to notify, without those in shadow. `state`: the judge's, with these events applied."""
        self._earlier |= state.moments.unconfirmed.keys()
        kept = [event for event in events if self._kept(event, state.moments.follows)]
        for keys in (self._sent, self._held, self._earlier):
            keys.intersection_update(state.tracks)
        left_over = self._raised([state.tracks[key] for key in self._held], state)
        return [_named(event, state.moments.follows) for event in (*kept, *left_over) if not shadowed(event)]

    def again(self, state: State, shadowed: Shadowed = lambda _: False) -> list[Event]:
        """Return findings raised before this run, confirmed in it, and not yet notified in it; failures first."""
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
        """Yield an event for each active, confirmed finding without a cause that was not notified in this run."""
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
    """Add the names of the finding's consequences to the event."""
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
