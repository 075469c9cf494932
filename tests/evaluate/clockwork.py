"""A clock that goes as fast as it is asked to, and what is due on it.

What goes on beside the passes (a reset, a job, a fault) is a *process*: a generator that yields how many seconds to wait
before it goes on.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator

Process = Generator[float, None, None]


class Clockwork:
    """`clock` counts seconds from the start of the story and never jumps back."""

    def __init__(self) -> None:
        self.clock = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._tickets = 0

    def later(self, delay: float, action: Callable[[], None]) -> None:
        self._tickets += 1
        heapq.heappush(self._due, (self.clock + delay, self._tickets, action))

    def go(self, process: Process) -> None:
        """Begin a process; it does its first steps at once."""
        delay = next(process, None)
        if delay is not None:
            self.later(delay, lambda: self.go(process))

    def run(self, seconds: float) -> None:
        end = self.clock + seconds
        while self._due and self._due[0][0] <= end:
            self.clock, _, action = heapq.heappop(self._due)
            action()
        self.clock = end

    def sleep(self, seconds: float) -> None:
        """Nobody does anything for so long; what was due is done afterwards."""
        self.clock += seconds
        self._due = [(max(at, self.clock), ticket, action) for at, ticket, action in self._due]
        heapq.heapify(self._due)

    def forget(self) -> None:
        """Drop all that is due."""
        self._due.clear()
