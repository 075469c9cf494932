"""How many nodes are tested at once: the first by (since, name) go on."""

from __future__ import annotations

from gpuwarden.features.active_test.at_once import asked_again, refusal
from gpuwarden.policy.model import Held

NOW = 1_772_366_400.0


def test_the_first_by_time_and_name_are_tested_and_the_others_are_not() -> None:
    held = [Held(NOW, "n3"), Held(NOW, "n1"), Held(NOW + 1, "n2")]
    assert [refusal(2, held, node) == "" for node in ("n1", "n3", "n2")] == [True, True, False]
    assert "test.at_once allows 2" in refusal(2, held, "n2")


def test_a_node_that_is_not_visible_yet_comes_behind_all_others() -> None:
    assert refusal(1, [Held(NOW, "n1")], "n0")
    assert not refusal(2, [Held(NOW, "n1")], "n0")


def test_a_node_that_is_visible_twice_is_one() -> None:
    assert not refusal(2, [Held(NOW, "n1"), Held(NOW - 5, "n1")], "n2")


def test_a_node_that_waits_asks_ever_less_often_and_never_less_than_each_quarter_of_an_hour() -> None:
    """Five hundred nodes behind one switch return together: each question is answered with the state of the whole cluster."""
    assert [asked_again(refusals)[0] for refusals in (1, 2, 3, 4, 5, 10**6)] == [30.0, 60.0, 120.0, 240.0, 240.0, 240.0]
    least, most = asked_again(10**6)
    assert 500 / ((least + most) / 2) < 1.1
    assert most <= 900.0
