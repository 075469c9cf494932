"""State within one step of the judge. Events are folded at once; refreshed tracks are stored at the end."""

from __future__ import annotations

from gpuwarden.health.memory import State, Track
from gpuwarden.health.model import Event, EventKind, Evidence, Key
from gpuwarden.health.state import fold
from gpuwarden_collectors.dataclass import replace
from gpuwarden_collectors.facts import Stamp


class Steps:
    def __init__(self, state: State, now: Stamp, boot_id: str) -> None:
        self.state = state
        self.events: list[Event] = []
        self.now = now
        self._boot_id = boot_id
        self._refreshed: dict[Key, Track] | None = None
        self.sighted: dict[Key, float] = {}
        """Unconfirmed findings that were seen in this step, with their rise times in seconds."""

    def take(self, event: Event) -> None:
        self.settle()
        self.state = fold(self.state, event)
        self.events.append(event)  # after the fold: an event that cannot be folded must not reach the ledger

    def emit(self, kind: EventKind, key: Key | None = None, data: Evidence | None = None) -> None:
        self.take(Event(kind=kind, at=self.now, boot_id=self._boot_id, key=key, data=data or {}))

    def track(self, key: Key) -> Track | None:
        return (self.state.tracks if self._refreshed is None else self._refreshed).get(key)

    def refresh(self, track: Track) -> None:
        """Store a change of a track that needs no event: a repeated sighting, or the time since which there is none."""
        if self._refreshed is None:
            self._refreshed = dict(self.state.tracks)
        self._refreshed[track.key] = track

    def settle(self) -> None:
        """Store the refreshed tracks in the state, with one copy of the mapping for all of them."""
        if self._refreshed is not None:
            self.state = replace(self.state, tracks=self._refreshed)
            self._refreshed = None
