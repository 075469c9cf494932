"""Pauses between failures grow from the first to the longest, and begin again after a success."""

from __future__ import annotations

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gpuwarden_collectors.backoff import Backoff

SECONDS = st.floats(0.001, 1e6)
OUTCOMES = st.lists(st.booleans(), max_size=300)


@given(SECONDS, SECONDS, st.floats(1.5, 4.0), OUTCOMES)
def test_a_pause_is_never_below_the_first_nor_above_the_longest_and_never_shrinks_between_failures(
    limit: float, other_limit: float, factor: float, outcomes: list[bool]
) -> None:
    first, most = sorted((limit, other_limit))
    backoff = Backoff(first, most, factor=factor)
    row: list[float] = []
    for succeeded in outcomes:
        if succeeded:
            backoff.succeeded()
            row = []
            continue
        row.append(backoff.failed())
        assert first <= row[-1] <= most
        assert row[0] == first
        assert all(before <= after <= before * factor * 1.000001 for before, after in pairwise(row))
        assert backoff.failures == len(row)
    for _ in range(100):
        row.append(backoff.failed())
    assert most / row[-1] < 1.000001 or first * factor**64 < most


@given(SECONDS, st.tuples(st.floats(0.1, 1.0), st.floats(1.0, 2.0)), st.integers(0, 2**32), st.integers(1, 50))
def test_chance_stays_within_the_spread(first: float, spread: tuple[float, float], seed: int, failures: int) -> None:
    plain, drawn = Backoff(first, 60.0 * first), Backoff(first, 60.0 * first, spread=spread, chance=random.Random(seed))
    for _ in range(failures):
        pause = plain.failed()
        assert pause * spread[0] * 0.999999 <= drawn.failed() <= pause * spread[1] * 1.000001


def test_other_bounds_hold_from_the_next_pause_on() -> None:
    backoff = Backoff(1.0, 8.0)
    assert [backoff.failed() for _ in range(5)] == [1.0, 2.0, 4.0, 8.0, 8.0]
    backoff.first, backoff.most = 0.5, 1000.0
    assert backoff.failed() == 16.0


def test_no_number_of_failures_is_too_large() -> None:
    backoff = Backoff(1.0, 30.0, factor=4.0)
    assert {backoff.failed() for _ in range(5_000)} == {1.0, 4.0, 16.0, 30.0}
