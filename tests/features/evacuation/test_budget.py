"""The time that is left is shared out: what cannot be had any more is dropped in one order, and the signal never is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.features.evacuation.policy.budget import (
    FAILING_GPU,
    FINAL_STATE_TAKES,
    INTERRUPTION,
    OVERDUE,
    REQUEUE_TAKES,
    SHUTDOWN,
    WINDOW,
    WINDOWS,
    Budget,
    budget,
)

BEGAN = 1_000.0


def of(window: float, kind: str = INTERRUPTION) -> Budget:
    return budget(kind, BEGAN, BEGAN + window)


@pytest.mark.parametrize(
    ("window", "wide", "waits", "requeue", "final_node_state"),
    [
        (1.0, False, 0.0, False, None),
        (2.2, True, 0.0, False, None),
        (2.5, True, 0.0, True, None),
        (4.0, True, 1.5, True, None),
        (5.0, True, 2.5, True, None),
        (30.0, True, 25.0, True, 28.5),
        (60.0, True, 55.0, True, 58.5),
        (120.0, True, 115.0, True, 118.5),
        (7_200.0, True, 7_195.0, True, 7_198.5),
    ],
)
def test_what_fits_into_a_window(
    window: float, wide: bool, waits: float, requeue: bool, final_node_state: float | None
) -> None:
    allotted = of(window)
    assert (allotted.wide, allotted.requeue) == (wide, requeue)
    assert allotted.wait_until - BEGAN == pytest.approx(waits)
    assert (allotted.final_state_at is None) == (final_node_state is None)
    assert allotted.final_state_at is None or allotted.final_state_at - BEGAN == pytest.approx(final_node_state)


@pytest.mark.parametrize(("kind", "seconds"), [(INTERRUPTION, WINDOW), ("scale_in", WINDOW), *WINDOWS.items()])
def test_without_a_deadline_a_window_is_assumed_and_there_is_no_final_node_update(kind: str, seconds: float) -> None:
    allotted = budget(kind, BEGAN, None)
    assert (allotted.window, allotted.assumed, allotted.final_state_at) == (seconds, True, None)


@pytest.mark.parametrize("deadline", [BEGAN, BEGAN - 1.0, BEGAN - 86_400.0])
def test_an_end_that_was_over_when_it_was_announced_leaves_a_moment_to_save(deadline: float) -> None:
    allotted = budget(INTERRUPTION, BEGAN, deadline)
    assert (allotted.window, allotted.assumed, allotted.final_state_at) == (OVERDUE, True, None)
    assert allotted.wait_until > BEGAN


@pytest.mark.parametrize("kind", [SHUTDOWN, FAILING_GPU])
def test_a_shutdown_and_a_failing_gpu_have_no_final_node_update(kind: str) -> None:
    assert of(600.0, kind).final_state_at is None


def dropped(allotted: Budget) -> tuple[bool, ...]:
    """Return which parts of the budget were dropped, in the order in which they go."""
    return (allotted.final_state_at is None, allotted.wait_until <= BEGAN, not allotted.requeue, not allotted.wide)


@settings(max_examples=300)
@given(window=st.floats(0.001, 1e6), kind=st.sampled_from([INTERRUPTION, SHUTDOWN, "maintenance"]))
def test_what_is_kept_fits_one_behind_the_other_and_is_dropped_in_one_order(window: float, kind: str) -> None:
    allotted = of(window, kind)
    assert list(dropped(allotted)) == sorted(dropped(allotted), reverse=True)
    assert BEGAN <= allotted.wait_until <= allotted.end
    if allotted.requeue:
        assert allotted.wait_until + REQUEUE_TAKES <= allotted.end + 1e-6
    if allotted.final_state_at is not None:
        assert allotted.wait_until + REQUEUE_TAKES <= allotted.final_state_at + 1e-6
        assert allotted.final_state_at + FINAL_STATE_TAKES <= allotted.end + 1e-6


@settings(max_examples=200)
@given(windows=st.lists(st.floats(0.001, 1_000.0), min_size=2, max_size=2))
def test_more_time_never_drops_what_less_time_allows(windows: list[float]) -> None:
    less, more = map(of, sorted(windows))
    assert all(not gone or had_gone for gone, had_gone in zip(dropped(more), dropped(less), strict=True))
