"""Limits concurrent calls of Slurm's commands to two, and one more for evacuations.

If the controller hangs, each call takes its whole timeout. Therefore a call without a free turn may end a read-only
call of lower precedence, which is repeated later: a routine call for an evacuation, or an evacuation's call for a
signal. A change is never ended, because it may be half done.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
from collections.abc import AsyncIterator, Callable
from enum import IntEnum

from gpuwarden_collectors.dataclass import dataclass

AT_ONCE = 2


class Precedence(IntEnum):
    """The order in which waiting calls get a turn; first come, first served among equals."""

    SIGNAL = 0
    """A signal to a job through the controller."""
    LISTING = 1
    """The list of the processes of Slurm jobs, which slurmd answers even if the controller hangs."""
    EVACUATION = 2
    """The reads and writes of an evacuation."""
    ROUTINE = 3
    """Everything that can wait: drains, reads of the node, the jobs on each GPU."""


@dataclass(eq=False, slots=True)
class Turn:
    precedence: Precedence
    question: bool
    """True if it only reads and may be repeated."""
    reserved: bool = False
    """True if it runs in the turn reserved for evacuations, in addition to AT_ONCE."""
    gave_way: bool = False
    """True if it must end for a call of higher precedence; then `end` is called, if it is set."""
    end: Callable[[], object] | None = None

    @property
    def may_give_way(self) -> bool:
        own = self.precedence is Precedence.EVACUATION and not self.reserved
        return self.question and not own and not self.gave_way

    def give_way(self) -> None:
        self.gave_way = True
        if self.end is not None:
            self.end()


class Turns:
    """The turns of one client's calls."""

    def __init__(self) -> None:
        self._running: list[Turn] = []
        self._waiting: list[tuple[Precedence, int, Turn, asyncio.Future[None]]] = []
        self._numbers = itertools.count()

    @contextlib.asynccontextmanager
    async def turn(self, precedence: Precedence, *, question: bool) -> AsyncIterator[Turn]:
        """Waits for a turn, and releases it at the end of the block."""
        turn = Turn(precedence, question)
        await self._wait(turn)
        try:
            yield turn
        finally:
            self._give_back(turn)

    async def _wait(self, turn: Turn) -> None:
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (turn.precedence, next(self._numbers), turn, granted))
        self._hand_out()
        if not granted.done() and self._make_room(turn.precedence):
            self._hand_out()
        try:
            await granted
        except asyncio.CancelledError:
            if not granted.cancelled():  # it was granted a turn and cancelled at the same moment
                self._give_back(turn)
            raise

    def _hand_out(self) -> None:
        """Grants turns in the order of the queue and stops at the first that cannot run.

        No later call in the queue could run either, because earlier ones have all their rights.
        """
        while self._waiting:
            _, _, turn, granted = self._waiting[0]
            if not granted.done():
                if not self._grant(turn):
                    return
                granted.set_result(None)
            heapq.heappop(self._waiting)

    def _grant(self, turn: Turn) -> bool:
        """Starts a turn if there is room for it.

        A call that gave way is ending and does not count: a recorded signal must be sent at once.
        """
        running = [command for command in self._running if not command.gave_way]
        reserved = sum(command.reserved for command in running)
        if len(running) - reserved == AT_ONCE:
            if reserved or turn.precedence is Precedence.ROUTINE:
                return False
            turn.reserved = True
        self._running.append(turn)
        return True

    def _make_room(self, precedence: Precedence) -> bool:
        """Ends the running read of the lowest precedence, if it is lower than `precedence`. True if one was ended."""
        lower = [turn for turn in self._running if turn.precedence > precedence and turn.may_give_way]
        if lower:
            max(lower, key=lambda turn: turn.precedence).give_way()
        return bool(lower)

    def _give_back(self, turn: Turn) -> None:
        self._running.remove(turn)
        self._hand_out()
