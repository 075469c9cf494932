"""Decides when a worker may be started, killed, or must be left alone. Pure bookkeeping, with `now` as an argument.

A worker that misses its deadline gets SIGTERM. If it still runs after the grace period it is killed, at most a limited
number of times in a window, because killing a client of the driver has frozen GPUs; beyond that it is *parked*: left
alone and reported. A process in D state cannot be killed and is *abandoned*: one new worker may run in addition, not
two. After consecutive crashes and timeouts without an answer, the pauses before a restart grow.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum

from gpuwarden_collectors.backoff import Backoff
from gpuwarden_collectors.base import PassOutcome
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLimits:
    """Limits in seconds and counts.

    `backoff_first` is the pause after the second failure in a row; it doubles from there.
    """

    deadline: float = 10.0
    init_deadline: float = 60.0
    term_grace: float = 5.0
    kills: int = 3
    kill_window: float = 1800.0
    backoff_first: float = 1.0
    backoff_max: float = 60.0
    events_burst: int = 10_000
    events_every: float = 0.001


class Fate(StrEnum):
    """What to do with a worker that still runs after SIGTERM and the grace period."""

    KILL = "kill"
    ABANDON = "abandon"
    PARK = "park"


class WorkerLife:
    """The history of the workers of one collector. Times are seconds of the loop's clock, stamps are for show."""

    def __init__(self, limits: WorkerLimits) -> None:
        self._limits = limits
        self._kill_times: deque[float] = deque()
        self._failed = False  # since the last answer
        self._backoff = Backoff(limits.backoff_first, limits.backoff_max)
        self._start_after = float("-inf")
        self._silent = False
        self._last_answer: Stamp | None = None
        self._first_ask: Stamp | None = None
        self._unanswered_from: float | None = None
        self.failure = (PassOutcome.FAILED, "")  # how the last worker ended
        self.last_error = ""
        self.silence = ""  # calls during the deadlines missed since the last answer
        self.ever_answered = False
        self.starts = self.missed = self.timeouts = self.crashes = self.kills = 0

    def asked(self, now: float, at: Stamp) -> None:
        self._silent = True
        if self._first_ask is None:
            self._first_ask = at
        if self._unanswered_from is None:
            self._unanswered_from = now

    def answered(self, at: Stamp) -> None:
        self._silent = False
        self._last_answer = at
        self._unanswered_from = None
        self.ever_answered = True
        self.missed = 0
        self.silence = ""
        self._failed = False
        self._backoff.succeeded()

    def silent_at(self, silence: str) -> None:
        """Records that a worker missed its deadline. `silence` describes the unanswered call.

        Keeps the first and the newest since the last answer.
        """
        first = self.silence.partition("; then ")[0]
        self.silence = silence if first in ("", silence) else f"{first}; then {silence}"

    def unanswered(self, now: float) -> None:
        """Records a pass that timed out at `now`.

        Counts as a missed deadline if a whole deadline has passed since the last one counted.
        """
        if self._unanswered_from is not None and now >= self._unanswered_from + self._limits.deadline:
            self._unanswered_from = now
            self.missed += 1
            self.timeouts += 1

    def unasked(self, now: float) -> None:
        """Records that the library was not called before `now`, so that its silence begins then."""
        self._unanswered_from = now

    def failed(self, now: float, how: PassOutcome, error: str) -> None:
        """Records that the worker crashed or could not be started (FAILED), or is ended after a timeout (TIMED_OUT)."""
        self.failure = how, error
        self.last_error = error
        self.crashes += how is PassOutcome.FAILED
        if self._failed:
            self._start_after = now + self._backoff.failed()
        self._failed = True

    def pause(self, now: float) -> float:
        """Seconds until a worker may be started again."""
        return max(0.0, self._start_after - now)

    def after_grace(self, now: float, *, stuck: bool) -> Fate:
        """Decides what to do with a worker that survived SIGTERM; counts a KILL."""
        if stuck:
            return Fate.ABANDON
        while self._kill_times and self._kill_times[0] <= now - self._limits.kill_window:
            self._kill_times.popleft()
        if len(self._kill_times) >= self._limits.kills:
            return Fate.PARK
        self._kill_times.append(now)
        self.kills += 1
        return Fate.KILL

    @property
    def silent_since(self) -> Stamp | None:
        return (self._last_answer or self._first_ask) if self._silent else None
