"""Whose turn it is to run one of Slurm's commands: two at once, and one more for what an evacuation may not wait for.

A hung controller holds each question for its whole timeout. So no question to the controller gets the third turn; and where a call
finds no turn, a question of lower precedence is ended and asked again later, unless an evacuation asks it. A change is never ended: it
may be half done.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import IntEnum

AT_ONCE = 2


class Precedence(IntEnum):
    """The order in which calls that wait get a turn; among equals the first to come."""

    SIGNAL = 0
    """A signal to a job through the controller."""
    LISTING = 1
    """Which processes are of Slurm's jobs: slurmd has the answer, whatever the controller does."""
    EVACUATION = 2
    """Its questions, and what it writes."""
    ROUTINE = 3
    """Everything that can wait: drains, reads of the node, the jobs on each GPU."""


@dataclass(eq=False, slots=True)
class Turn:
    """A call that runs. `reserved`: in the turn that signals and slurmd's list have beside AT_ONCE."""

    precedence: Precedence
    reserved: bool
    end: Callable[[], object] | None = None
    """Ends the call, if it may be ended for another one."""
    gave_way: bool = False
    """It was ended for a call of higher precedence."""


class Turns:
    """Of one client."""

    def __init__(self) -> None:
        self._running: list[Turn] = []
        self._waiting: list[tuple[Precedence, int, asyncio.Future[Turn]]] = []
        self._numbers = itertools.count()

    @contextlib.asynccontextmanager
    async def turn(self, precedence: Precedence) -> AsyncIterator[Turn]:
        """Waits for a turn, and gives it back."""
        turn = await self._wait(precedence)
        try:
            yield turn
        finally:
            self._give_back(turn)

    async def _wait(self, precedence: Precedence) -> Turn:
        mine: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (precedence, next(self._numbers), mine))
        self._hand_out()
        if not mine.done():
            self._make_room(precedence)
        try:
            return await mine
        except asyncio.CancelledError:
            if not mine.cancelled():  # it got its turn in the moment in which it was cancelled
                self._give_back(mine.result())
            raise

    def _hand_out(self) -> None:
        """Where the first in the queue gets no turn, none behind it does: each may take what those behind it may."""
        while self._waiting:
            precedence, _, waiting = self._waiting[0]
            if not waiting.done():
                if (turn := self._free(precedence)) is None:
                    return
                self._running.append(turn)
                waiting.set_result(turn)
            heapq.heappop(self._waiting)

    def _free(self, precedence: Precedence) -> Turn | None:
        reserved = sum(turn.reserved for turn in self._running)
        if len(self._running) - reserved < AT_ONCE:
            return Turn(precedence, reserved=False)
        return Turn(precedence, reserved=True) if precedence <= Precedence.LISTING and not reserved else None

    def _make_room(self, precedence: Precedence) -> None:
        lower = [t for t in self._running if t.precedence > precedence and t.end is not None and not t.gave_way]
        if lower:
            last = max(lower, key=lambda turn: turn.precedence)
            last.gave_way = True
            if last.end is not None:
                last.end()

    def _give_back(self, turn: Turn) -> None:
        self._running.remove(turn)
        self._hand_out()
