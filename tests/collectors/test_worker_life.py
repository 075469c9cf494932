"""The rules for starting, killing and leaving workers, without any process."""

from __future__ import annotations

from gpuwarden_collectors.base import PassOutcome
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.worker.life import Fate, WorkerLife, WorkerLimits

LIMITS = WorkerLimits()


def stamp(seconds: float) -> Stamp:
    return Stamp(seconds, seconds)


def test_kills_are_limited_within_the_window_and_allowed_again_after_it() -> None:
    life = WorkerLife(LIMITS)
    fates = [life.after_grace(now, stuck=False) for now in (0.0, 100.0, 200.0, 300.0, 1799.0, 1800.0, 1801.0)]
    assert fates == [Fate.KILL, Fate.KILL, Fate.KILL, Fate.PARK, Fate.PARK, Fate.KILL, Fate.PARK]
    assert life.kills == 4


def test_a_stuck_process_is_abandoned_and_costs_no_kill() -> None:
    life = WorkerLife(LIMITS)
    assert life.after_grace(0.0, stuck=True) is Fate.ABANDON
    assert life.kills == 0


def test_the_first_failure_is_followed_by_no_pause_and_further_ones_by_doubling_ones() -> None:
    life = WorkerLife(LIMITS)
    pauses = []
    for _ in range(10):
        life.failed(1000.0, PassOutcome.FAILED, "it died")
        pauses.append(life.pause(1000.0))
    assert pauses == [0, 1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert life.pause(1059.0) == 1.0
    assert life.pause(2000.0) == 0.0
    assert life.crashes == 10


def test_thousands_of_failures_pause_no_longer_than_the_limit() -> None:
    life = WorkerLife(LIMITS)
    for _ in range(5000):
        life.failed(0.0, PassOutcome.TIMED_OUT, "silent")
    assert (life.pause(0.0), life.crashes) == (60.0, 0)


def test_an_answer_ends_the_row_of_failures() -> None:
    life = WorkerLife(LIMITS)
    for _ in range(5):
        life.failed(0.0, PassOutcome.FAILED, "it died")
    life.answered(stamp(100.0))
    life.failed(200.0, PassOutcome.FAILED, "it died")
    assert life.pause(200.0) == 0.0


def test_only_whole_deadlines_count_as_missed() -> None:
    life = WorkerLife(LIMITS)
    life.asked(0.0, stamp(0.0))
    missed = []
    for now in (10.0, 10.1, 19.9, 20.1, 25.0, 30.1):
        life.unanswered(now)
        life.asked(now, stamp(now))
        missed.append(life.missed)
    assert missed == [1, 1, 1, 2, 2, 3]
    life.answered(stamp(40.0))
    assert (life.missed, life.timeouts) == (0, 3)


def test_silence_lasts_from_the_first_question_or_from_the_last_answer() -> None:
    life = WorkerLife(LIMITS)
    assert life.silent_since is None
    life.asked(5.0, stamp(5.0))
    life.asked(15.0, stamp(15.0))
    assert life.silent_since == stamp(5.0)
    life.answered(stamp(16.0))
    assert life.silent_since is None
    life.asked(20.0, stamp(20.0))
    assert life.silent_since == stamp(16.0)
