"""The proof in small: every fault on which nodes are taken out is told in time, and an hour of ordinary work says nothing."""

from __future__ import annotations

from random import Random

import pytest

from evaluate.bounds import proportion, rate
from evaluate.classes import CLASSES
from evaluate.jury import Jury, Said
from evaluate.measure import measure_days, measure_fault
from evaluate.node import Node
from evaluate.ordinary import Ordinary
from evaluate.report import Results, episodes, report, violations
from gpuwarden.trace.records import Record

AT_ONCE = [n for n, row in enumerate(CLASSES) if row.at_once]


@pytest.mark.parametrize("number", AT_ONCE, ids=lambda n: CLASSES[n].name)
def test_a_fault_on_which_nodes_are_taken_out_is_told_in_time_and_nothing_besides(number: int) -> None:
    result = measure_fault(number, seed=1)
    assert list(violations(Results(1, [result], [], []))) == []
    assert result.delay is not None


def test_hours_of_ordinary_work_are_no_fault() -> None:
    result = measure_days(seed=3, days=0.2)
    assert result.wrong == ()
    assert result.passes > 3000


def story(seed: int) -> list[Record]:
    records: list[Record] = []
    node = Node(records.append, Random(seed), gpus=2)
    node.start_daemon(remembers=False)
    Ordinary(node).begin()
    node.run(7200.0)
    return records


def test_the_same_seed_tells_the_same_story() -> None:
    assert story(1) == story(1)
    assert story(1) != story(2)


def test_every_ordinary_thing_can_be_judged() -> None:
    from evaluate.ordinary import PER_DAY

    for kind in PER_DAY:
        jury = Jury()
        node = Node(jury.take, Random(1), gpus=2)
        node.start_daemon(remembers=False)
        node.run(60.0)
        node.go(kind(node))
        node.run(300.0)
        assert jury.passes > 30


def test_what_is_said_again_within_ten_minutes_is_one_false_alarm() -> None:
    said = [Said(at, f"nvlink_down@link/x/{n}", "failure", "") for n, at in enumerate((0.0, 1.0, 590.0, 1300.0))]
    assert [one.seconds for one in episodes(said)] == [0.0, 1300.0]


def test_bounds_are_the_textbooks() -> None:
    assert rate(0, 1000)[1] * 1000 == pytest.approx(2.9957, abs=1e-4)  # the rule of three
    assert rate(3, 1) == pytest.approx((0.6187, 8.7673), abs=1e-4)
    assert proportion(3, 10) == pytest.approx((0.0667, 0.6525), abs=1e-4)
    assert proportion(50, 50)[0] == pytest.approx(0.05 ** (1 / 50), abs=1e-6)
    assert proportion(0, 5)[0] == 0.0


def test_the_report_has_a_row_for_every_fault_that_was_measured() -> None:
    results = Results(1, [measure_fault(0, 1), measure_fault(9, 1)], [], [])
    text = "\n".join(report(results))
    assert CLASSES[0].name in text
    assert CLASSES[9].name in text
    assert "Nothing." in text
