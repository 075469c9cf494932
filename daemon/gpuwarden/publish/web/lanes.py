"""Queue of logins that wait for their check: lanes by address and name, served in turn.

Checks (bcrypt) are expensive, and any client can request one. Many logins with wrong passwords fill their own lane, so
that another address, or another name at the same address, waits only for one check of each lane. Unknown names share
one lane for each address.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Generic, TypeVar

WAITING_MOST = 64
"""Most waiting checks in all lanes. At cost 10 a check takes about 70 ms."""
OF_LANE_MOST = 8

Lane = tuple[str, bytes]
"""Owner of the address (`connections.source_of`), and keyed hash of the name, empty for an unknown name."""
Waiting = TypeVar("Waiting")


class Lanes(Generic[Waiting]):
    def __init__(self) -> None:
        self._lanes: dict[Lane, deque[Waiting]] = {}  # next turn first

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    def add(self, lane: Lane, login: Waiting) -> list[Waiting]:
        """Queue a login. Return refused ones: itself if its lane is full, or one of the busiest address if all are."""
        if len(self._lanes.get(lane, ())) >= OF_LANE_MOST:
            return [login]
        refused = [self._newest_of_most()] if len(self) >= WAITING_MOST else []
        self._lanes.setdefault(lane, deque()).append(login)
        return refused

    def next(self) -> Waiting | None:
        """Remove and return the next login to check, or None. Its lane moves behind the others."""
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
