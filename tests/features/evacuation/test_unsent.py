"""Who was not sent a signal is tried again, at ever longer intervals."""

from __future__ import annotations

from gpuwarden.features.evacuation.unsent import FORGOTTEN_AFTER, PAUSE_MOST, Unsent

A, B = (1, 10), (2, 20)


def test_pauses_grow_with_each_attempt_for_a_job_and_start_anew_after_a_while() -> None:
    unsent, now, pauses = Unsent(), 100.0, []
    for _ in range(8):
        unsent.add("n", "slurm/7", [A], "traced", now)
        began = now
        while not unsent.take(now):
            now += 0.5
        pauses.append(now - began)
    assert pauses == [1.0, 2.0, 4.0, 8.0, *[PAUSE_MOST] * 4]
    now += FORGOTTEN_AFTER + 1.0
    assert unsent.take(now) == []
    unsent.add("n", "slurm/7", [A], "traced", now)
    assert unsent.take(now + 1.0)


def test_each_job_has_its_own_pause_and_each_rank_is_given_once() -> None:
    unsent = Unsent()
    unsent.add("n", "slurm/7", [A], "traced", 100.0)
    unsent.add("n", "slurm/7", [B], "no thread", 100.5)
    unsent.add("n", "slurm/8", [B], "traced", 100.5)
    assert [(retry.job, retry.processes) for retry in unsent.take(101.6)] == [("slurm/8", frozenset({B}))]
    (retry,) = unsent.take(102.5)
    assert (retry.notice, retry.job, retry.processes, retry.text) == ("n", "slurm/7", frozenset({A, B}), "no thread")
    assert unsent.take(200.0) == []
