"""The order of logins that wait for their check: in lanes, by address and name, which take turns.

A check is the scarce thing (bcrypt), and anybody can ask for one. A crowd with wrong passwords fills its own lane, so that another address, or
another name at the same address, waits for one check of each lane and not for all of them. Names that nobody has share one lane.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Generic, TypeVar

WAITING_MOST = 64
"""Checks that wait in all lanes; at cost 10 a check takes about 70 ms."""
OF_LANE_MOST = 8

Lane = tuple[str, bytes]
"""Address and name, as `connections.source_of` and a keyed hash have them; the name is empty for those that nobody has."""
Waiting = TypeVar("Waiting")


class Lanes(Generic[Waiting]):
    def __init__(self) -> None:
        self._lanes: dict[Lane, deque[Waiting]] = {}  # the one whose turn is next first

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    def add(self, lane: Lane, login: Waiting) -> list[Waiting]:
        """Queue it. Returns those that are refused: itself if its lane is full, else one of the address that has most if all places are taken."""
        if len(self._lanes.get(lane, ())) >= OF_LANE_MOST:
            return [login]
        refused = [self._newest_of_most()] if len(self) >= WAITING_MOST else []
        self._lanes.setdefault(lane, deque()).append(login)
        return refused

    def next(self) -> Waiting | None:
        """The login that is to be checked now, or None. Its lane goes behind the others."""
        if not self._lanes:
            return None
        lane = next(iter(self._lanes))
        waiting = self._lanes.pop(lane)
        login = waiting.popleft()
        if waiting:
            self._lanes[lane] = waiting
        return login

    def _newest_of_most(self) -> Waiting:
        counts: Counter[str] = Counter()
        for (source, _), waiting in self._lanes.items():
            counts[source] += len(waiting)
        source = counts.most_common(1)[0][0]
        lane = max((lane for lane in self._lanes if lane[0] == source), key=lambda each: len(self._lanes[each]))
        login = self._lanes[lane].pop()
        if not self._lanes[lane]:
            del self._lanes[lane]
        return login
