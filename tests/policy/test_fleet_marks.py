"""Marks of nodes in a scheduler's text field: what counts, what is somebody else's, and how several kinds share one field."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.policy.fleet_marks import LASTS_MOST, Mark, is_free, marks, with_mark, without

NOW = 1_772_366_400.0
TEST, REPAIR = Mark("test", NOW, NOW + 60.0), Mark("repair", NOW - 10.0, NOW + 600.0)
MARKS = st.builds(
    Mark, st.sampled_from(["test", "repair"]), st.integers(0, 10**10).map(float), st.integers(0, 10**10).map(float)
)


def test_two_kinds_share_a_field_and_each_is_ended_alone() -> None:
    text = with_mark(with_mark("", REPAIR), TEST)
    assert text == f"{REPAIR} {TEST}"
    assert marks(text) == (REPAIR, TEST)
    assert without(text, "repair") == str(TEST)
    assert without(without(text, "repair"), "test") == ""


def test_a_mark_of_the_same_kind_is_replaced_or_kept_for_as_long_as_it_is_counted() -> None:
    before = Mark("repair", NOW - 3_600.0, NOW - 3_500.0)
    assert with_mark(str(before), REPAIR) == str(REPAIR)
    assert with_mark(str(before), REPAIR, kept=86_400.0) == f"{before} {REPAIR}"
    assert with_mark(str(before), REPAIR, kept=60.0) == str(REPAIR)


@given(st.lists(MARKS, max_size=4))
def test_what_is_written_is_read_again(fleet_marks: list[Mark]) -> None:
    text = " ".join(map(str, fleet_marks))
    assert marks(text) == tuple(fleet_marks)
    assert is_free(text)


@pytest.mark.parametrize(
    "text",
    [
        "new fan",
        f"{TEST} and a new fan",
        f"new fan {TEST}",
        "gpuwarden: failure gpu=3 xid=79",
        "gpuwarden: test from=x to=y",
    ],
)
def test_what_holds_anything_else_is_somebody_else_s(text: str) -> None:
    assert not is_free(text)
    assert marks(text) == ()


@pytest.mark.parametrize(
    ("mark", "counts"),
    [
        (Mark("test", NOW - 10.0, NOW + 10.0), True),
        (Mark("test", NOW - 100.0, NOW - 30.0), True),
        (Mark("test", NOW - 100.0, NOW - 61.0), False),
        (Mark("test", NOW, NOW + LASTS_MOST + 1.0), False),
        (Mark("test", NOW + 1e6, NOW + 1e6 + 60.0), False),
    ],
)
def test_a_mark_counts_until_its_end_and_not_for_longer_than_anything_lasts(mark: Mark, counts: bool) -> None:
    assert mark.counts(NOW) is counts
