"""Parts at which workers hung: which of them the next worker reads last, and which it leaves out for a while.

A part that hangs costs the worker that reads it, so the others are read first and reported before. A part is left out as long as
a process that hung there is still inside the driver, which shows that it still hangs; and after a second hang in a row for a growing pause. A worker
that had to be killed costs one of few kills: its part is asked again so rarely that these are never used up by it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import inf

from gpuwarden_collectors.backoff import Backoff
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.worker.in_flight import InFlight
from gpuwarden_collectors.worker.life import WorkerLimits

_FIRST_PAUSE, _LONGEST_PAUSE = 30.0, 300.0  # seconds; each try costs a pass that lasts the whole deadline
_MOST = 16  # what one question has room for


@dataclass(frozen=True, slots=True)
class Hung:
    """A part that a reader must not read in its turn."""

    part: str
    number: int
    total: int
    call: str
    """The call in which a worker hung."""
    seconds: int
    """Seconds for which the part has reported nothing."""
    last: bool
    """True if it is read after all others; else it is not read at all."""


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

        A part in which it spent less than half of the deadline is not accused.
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
        """Returns the parts to report to the next reader.

        `present` are the processes that were left behind or are still being ended.
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
        """Records that a worker answered this question in full: the parts that it read last answer again."""
        for hung in question:
            if hung.last:
                self._parts.pop(hung.part, None)
