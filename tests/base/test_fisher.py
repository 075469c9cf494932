"""Fisher's exact test, by counting every way in which a table can come about."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.base.fisher import p_value


@settings(deadline=None, max_examples=100)
@given(data=st.data(), total=st.integers(1, 10))
def test_the_chance_is_the_share_of_all_ways_to_mark_as_many(data: st.DataObject, total: int) -> None:
    having, marked = data.draw(st.integers(0, total)), data.draw(st.integers(0, total))
    both = data.draw(st.integers(max(0, having + marked - total), min(having, marked)))
    ways = [sum(n < having for n in chosen) >= both for chosen in combinations(range(total), marked)]
    assert p_value(both, marked, having, total) == sum(ways) / len(ways)


def test_the_lady_who_tastes_tea() -> None:
    assert p_value(4, 4, 4, 8) == 1 / 70
    assert p_value(3, 4, 4, 8) == 17 / 70


def test_a_fleet_of_eight_thousand_is_exact_and_quick() -> None:
    assert 0 < p_value(2_100, 4_000, 4_000, 8_000) < 1e-5
    assert p_value(18, 18, 18, 8_000) < 1e-50


@pytest.mark.parametrize("table", [(5, 4, 5, 8), (-1, 4, 4, 8), (0, 5, 4, 8), (1, 9, 1, 8)])
def test_numbers_that_no_table_has_are_refused(table: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="no table has"):
        p_value(*table)
