"""Makes reads that may hang for ever, in threads that can be abandoned.

The command line and the environment of a process are read under its memory lock. While one of its threads holds the
lock in the kernel (waiting for a driver or a dead file server), the reader blocks, too, and only the exit of this
daemon ends that. Checking the states of all threads first would take longer than the read, and would not exclude a
hang.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

PATIENCE = 1.0
"""Seconds without progress after which a read counts as hung. A read takes microseconds, or milliseconds from swap.

Each further hung read shortens the time of the next, so that all together cost a few seconds.
"""
LEFT_BEHIND_MOST = 64
"""Most hung threads at a time; with that many, nothing is read until one returns."""

Item = TypeVar("Item", bound=Hashable)
Answer = TypeVar("Answer")


class TimedReads(Generic[Item, Answer]):
    """Reads in threads with a time limit, since a read may hang. Not thread-safe."""

    def __init__(self, patience: float = PATIENCE, most: int = LEFT_BEHIND_MOST) -> None:
        self._patience = patience
        self._most = most
        self._left_behind: dict[Item, threading.Thread] = {}

    def all(self, function: Callable[[Item], Answer], items: Iterable[Item]) -> dict[Item, Answer]:
        """Returns the answers, without those of hung items. Raises what `function` raises."""
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
        """Waits until the turn is complete or makes no more progress."""
        before = -1
        while turn.thread.is_alive() and before != len(turn.todo):
            before = len(turn.todo)
            turn.thread.join(self._patience / (1 + len(self._left_behind)))


class _Turn(Generic[Item, Answer]):
    """One thread that processes items until none are left, or until it is abandoned."""

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
