"""How many nodes are repaired at once and within a day: each node sees the same marks, and the later ones wait."""

from __future__ import annotations

from gpuwarden.features.repair.budget import REPAIR, refusal
from gpuwarden.features.repair.options import RepairOptions
from gpuwarden.policy.fleet_marks import Mark

NOW = 1_772_366_400.0
HOUR = 3_600.0


def running(since: float) -> Mark:
    return Mark(REPAIR, since, since + HOUR)


def over(hours: float) -> Mark:
    since = NOW - hours * HOUR
    return Mark(REPAIR, since, since + 300.0)


def options(at_once: int = 1, per_day: int = 3) -> RepairOptions:
    return RepairOptions(at_once=at_once, per_day=per_day)


def test_nobody_is_in_the_way() -> None:
    assert not refusal(options(), {}, "n1", NOW)


def test_of_two_that_begin_in_the_same_second_the_first_by_name_goes_on() -> None:
    marks = {"n1": [running(NOW)], "n2": [running(NOW)]}
    assert not refusal(options(), marks, "n1", NOW)
    assert "repair.at_once allows 1" in refusal(options(), marks, "n2", NOW)
    assert not refusal(options(at_once=2), marks, "n2", NOW)


def test_a_node_without_a_mark_comes_behind_all_that_have_one() -> None:
    assert refusal(options(), {"n9": [running(NOW - 60.0)]}, "n1", NOW)


def test_what_ended_is_not_repaired_now_and_counts_for_a_day() -> None:
    marks = {"n1": [over(1.0)], "n2": [over(2.0)], "n3": [over(23.0), over(30.0)]}
    assert "repairs of the fleet within 24 hours: 3" in refusal(options(), marks, "n4", NOW)
    assert not refusal(options(per_day=4), marks, "n4", NOW)


def test_its_own_earlier_repairs_count_and_the_one_it_is_about_does_not() -> None:
    marks = {"n1": [over(1.0), running(NOW)]}
    assert not refusal(options(per_day=2), marks, "n1", NOW)
    assert refusal(options(per_day=1), marks, "n1", NOW)
