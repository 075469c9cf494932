"""The bounded queue from the event loop to the ledger's writer thread."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import replace

from gpuwarden.ledger.store import Entry


class WriteQueue:
    """Entries that wait to be written, with at most `capacity` events. An entry that does not fit loses its events,
    which are counted in `dropped`; its position and checkpoint are kept.

    `added` and `settled` count the entries that were queued and those that are written, in the same order.
    """

    def __init__(self, capacity: int) -> None:
        self.dropped = 0
        self.added = 0
        self.settled = 0
        self.events = 0
        self._capacity = capacity
        self._waiting: deque[Entry] = deque()
        self._in_hand: list[Entry] = []
        self._lock = threading.RLock()  # never held while the disk is used

    def add(self, entry: Entry) -> bool:
        """Queue an entry. Returns False if its events were dropped."""
        with self._lock:
            fits = self.events + len(entry.events) <= self._capacity
            if not fits:
                self.dropped += len(entry.events)
                entry = replace(entry, events=())
            last = self._waiting[-1] if self._waiting else None
            if last is not None and not last.events and not entry.events:
                checkpoint = last.checkpoint if entry.checkpoint is None else entry.checkpoint
                self._waiting[-1] = Entry(position=entry.position or last.position, checkpoint=checkpoint)
            else:
                self._waiting.append(entry)
                self.added += 1
                self.events += len(entry.events)
            return fits

    def take(self, most: int) -> list[Entry]:
        """Return the oldest entries, which count as waiting until `done`."""
        with self._lock:
            self._in_hand = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
            return self._in_hand

    def done(self) -> None:
        with self._lock:
            self.settled += len(self._in_hand)
            self.events -= sum(len(entry.events) for entry in self._in_hand)
            self._in_hand = []

    def put_back(self) -> None:
        with self._lock:
            self._waiting.extendleft(reversed(self._in_hand))
            self._in_hand = []
