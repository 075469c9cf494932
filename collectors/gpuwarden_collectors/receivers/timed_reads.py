"""Reads that may never come back, done by threads that can be left behind.

The command line and the environment of a process are read under its memory lock. While one of its threads holds that in the
kernel and waits there (for a driver, for a dead file server), the reader waits too, and nothing but the end of this daemon
ends that. Reading the states of all threads first would cost more than the reading, and settle nothing.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

PATIENCE = 1.0
"""Seconds without any progress until a read counts as hung. It takes microseconds, or, of what is swapped out, a few milliseconds.

With each read that hangs already the next one is given less, so that all of them together cost a few seconds.
"""
LEFT_BEHIND_MOST = 64
"""Threads that hang at the same time; with so many nothing is read until one comes back."""

Item = TypeVar("Item", bound=Hashable)
Answer = TypeVar("Answer")


class TimedReads(Generic[Item, Answer]):
    """Reads in threads with a time limit, since a read may hang. Not thread-safe."""

    def __init__(self, patience: float = PATIENCE, most: int = LEFT_BEHIND_MOST) -> None:
        self._patience = patience
        self._most = most
        self._left_behind: dict[Item, threading.Thread] = {}

    def all(self, function: Callable[[Item], Answer], items: Iterable[Item]) -> dict[Item, Answer]:
        """Returns the answers; those that hang, now or since earlier, are missing. Raises what `function` raises."""
        hanging = self._left_behind = {item: thread for item, thread in self._left_behind.items() if thread.is_alive()}
        turn = _Turn(function, deque(item for item in items if item not in hanging), {})
        while turn.todo and len(hanging) < self._most:
            turn.thread.start()
            self._wait(turn)
            if (item := turn.give_up()) is not None:
                hanging[item] = turn.thread
            elif turn.error is not None:
                raise turn.error
            turn = _Turn(function, turn.todo, turn.answers)
        return turn.answers

    def _wait(self, turn: _Turn[Item, Answer]) -> None:
        """Waits until the turn is complete or makes no progress."""
        before = -1
        while turn.thread.is_alive() and before != len(turn.todo):
            before = len(turn.todo)
            turn.thread.join(self._patience / (1 + len(self._left_behind)))


class _Turn(Generic[Item, Answer]):
    """Takes items until there are none, or until it was given up."""

    def __init__(self, function: Callable[[Item], Answer], todo: deque[Item], answers: dict[Item, Answer]) -> None:
        self.thread = threading.Thread(target=self._run, name="timed-read", daemon=True)
        self.error: Exception | None = None
        self.todo, self.answers = todo, answers
        self._function = function
        self._lock = threading.Lock()
        self._at: Item | None = None
        self._given_up = False

    def give_up(self) -> Item | None:
        """Returns the item at which the turn hangs, or None if it is complete."""
        with self._lock:
            self._given_up = True
            return self._at

    def _run(self) -> None:
        try:
            while self._one():
                pass
        except Exception as error:  # noqa: BLE001 - raised again in the thread that waits
            self.error = error
        with self._lock:
            self._at = None

    def _one(self) -> bool:
        with self._lock:
            if self._given_up or not self.todo:
                return False
            item = self._at = self.todo.popleft()
        answer = self._function(item)
        with self._lock:
            if not self._given_up:
                self.answers[item] = answer
            self._at = None
            return not self._given_up
