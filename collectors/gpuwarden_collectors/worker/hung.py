"""Decides which parts at which workers hung the next worker reads last, and which it skips for a while.

A hanging part costs the worker that reads it, so the other parts are read and reported first. A part is skipped while a
process that hung there is still inside the driver, and, after two hangs in a row, for a growing pause. Kills of workers
are limited: after a kill the part is retried so rarely that it never exhausts that budget.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import inf

from gpuwarden_collectors.backoff import Backoff
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.worker.in_flight import InFlight
from gpuwarden_collectors.worker.life import WorkerLimits

_FIRST_PAUSE, _LONGEST_PAUSE = 30.0, 300.0  # seconds; each attempt costs a pass of the whole deadline
_MOST = 16  # most parts that fit into one request


@dataclass(frozen=True, slots=True)
class Hung:
    """A part that a reader must read last or skip."""

    part: str
    number: int
    total: int
    call: str
    """The call in which a worker hung."""
    seconds: int
    """Seconds since the part last reported."""
    last: bool
    """True: read it after all others. False: skip it."""


@dataclass(slots=True)
class _Part:
    at: InFlight
    since: float
    backoff: Backoff
    pid: int
    ask_at: float


class HungParts:
    """The parts at which workers hung. Pure bookkeeping; `now` is in seconds of CLOCK_MONOTONIC."""

    def __init__(self, limits: WorkerLimits) -> None:
        self._limits = limits
        self._parts: dict[str, _Part] = {}

    def missed(self, at: InFlight, pid: int, now: float) -> None:
        """Records that worker `pid` missed its deadline `at` this part.

        Ignores a part in which it spent less than half of the deadline.
        """
        if not (at.part and self._limits.deadline / 2 <= now - at.since < inf):
            return
        part = self._parts.pop(at.part, None)
        if part is None:
            part = _Part(at, at.since, Backoff(_FIRST_PAUSE, _LONGEST_PAUSE), pid, now)  # read last, without a pause
        else:
            part.ask_at = now + part.backoff.failed()
        part.at, part.pid = at, pid
        self._parts[at.part] = part
        if len(self._parts) > _MOST:
            del self._parts[next(iter(self._parts))]

    def killed(self, pid: int, now: float) -> None:
        """Records that the worker `pid` had to be killed."""
        for part in self._parts.values():
            if part.pid == pid:
                part.ask_at = max(part.ask_at, now + self._limits.kill_window / self._limits.kills)

    def question(self, now: float, present: Collection[int]) -> tuple[Hung, ...]:
        """Returns the hung parts for the next request.

        `present`: the processes that were left behind or are still exiting.
        """
        return tuple(
            Hung(
                name,
                part.at.number,
                part.at.total,
                part.at.call,
                round(now - part.since),
                last=now >= part.ask_at and part.pid not in present,
            )
            for name, part in self._parts.items()
        )

    def answered(self, question: Iterable[Hung]) -> None:
        """Records a complete answer to this request: the parts that were read last have recovered."""
        for hung in question:
            if hung.last:
                self._parts.pop(hung.part, None)
