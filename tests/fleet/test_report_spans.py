"""The arithmetic under the report: spans of time, what an outage is, and figures that never claim a mean of one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.cli.fleet_report_text import summary
from gpuwarden.fleet.report.collected import BEGAN, CEASED, LABELS, Collected, Labels, Set
from gpuwarden.fleet.report.figures import figures, interval, spread
from gpuwarden.fleet.report.history import Node, joined, nodes_of
from gpuwarden.fleet.report.outages import OTHER, story
from gpuwarden.fleet.report.reading import Reading
from gpuwarden.fleet.report.report import report
from gpuwarden.fleet.report.spans import Span, Spans, bridged, common, toggled, total, union, without
from gpuwarden.prometheus.client import Results, Sample

END = 100.0
SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30))).map(
    lambda pairs: union([(float(min(pair)), float(max(pair))) for pair in pairs])
)


def seconds(spans: Spans) -> set[int]:
    """Return the whole seconds that begin in the spans."""
    return {second for start, end in spans for second in range(int(start), int(end))}


@given(SPANS, SPANS)
def test_spans_are_sets_of_seconds(first: Spans, second: Spans) -> None:
    first_seconds, second_seconds = seconds(first), seconds(second)
    assert seconds(union(first, second)) == first_seconds | second_seconds
    assert seconds(common(first, second)) == first_seconds & second_seconds
    assert seconds(without(first, second)) == first_seconds - second_seconds
    assert total(first) == len(first_seconds)


@given(SPANS, SPANS)
def test_results_are_disjoint_in_order_and_not_empty(first: Spans, second: Spans) -> None:
    for spans in (union(first, second), common(first, second), without(first, second)):
        moments = [moment for span in spans for moment in span]
        assert moments == sorted(moments)
        assert all(start < end for start, end in spans)


def test_what_begins_and_ceases_is_a_span_and_what_does_not_cease_lasts_to_the_end() -> None:
    assert toggled([(1, True), (5, False), (7, True)], END) == ((1, 5), (7, END))
    assert toggled([(1, False), (5, True), (6, True)], END) == ((5, END),)
    assert toggled([], END) == ()


def test_a_state_lasts_over_a_gap_until_something_else_is_known() -> None:
    readable_spans = ((0.0, 10.0), (20.0, 30.0), (40.0, 50.0))
    assert bridged(((5.0, 10.0), (20.0, 22.0)), readable_spans) == ((5, 22),)
    assert bridged(((5.0, 10.0),), readable_spans) == ((5, 20),)
    assert bridged(((5.0, 8.0), (20.0, 22.0)), readable_spans) == ((5, 8), (20, 22))
    assert bridged(((45.0, 50.0),), readable_spans) == ((45, 50),)


def test_a_node_of_which_only_the_end_was_read_is_none_of_the_report() -> None:
    """Remote storage may show the samples of one step between two queries."""
    collected = Collected(60)
    gone, here = ({"job": "gpuwarden", "instance": name, "node": name} for name in ("n1", "n2"))
    collected.add(Results({BEGAN: [Sample(here, 60.0, 1.0)], CEASED: [Sample(gone, 120.0, 1.0)]}))
    reading = Reading((0.0, 600.0), 60, collected.sets(600.0), {}, ())
    assert [(node.name, node.seen) for node in nodes_of(reading)] == [("n2", (0.0, 600.0))]


def node(name: str = "n1", **more: object) -> Node:
    fields: dict[str, object] = {
        "names": (name,), "keys": (("", "gpuwarden", name),), "known": ((0.0, END),), "excluded": {}, "findings": {},
        "labels": {}, "gpus": 8,
    }  # fmt: skip
    return Node(**{**fields, **more})  # type: ignore[arg-type]


def test_an_outage_lasts_until_the_node_is_no_longer_excluded_for_it() -> None:
    drained = {("slurm", "failure"): ((11.0, 30.0),)}
    history = story(node(failed=((10.0, 20.0),), unschedulable=((10.0, 30.0),), excluded=drained), 1.0)
    (outage,) = history.outages
    assert (outage.start, outage.end, outage.began, outage.ended, outage.cause) == (10, 30, True, True, "no finding")
    assert history.lost == {"no finding": ((10, 30),)}


def test_what_follows_from_another_finding_of_the_first_step_is_not_the_cause() -> None:
    findings = {
        ("ecc_uncorrectable", "", "GPU-2"): ((10.0, 20.0),),
        ("gpu_missing", "", "GPU-1"): ((10.0, 20.0),),
        ("driver_unresponsive", "", ""): ((15.0, 20.0),),
    }
    (outage,) = story(node(failed=((10.0, 20.0),), findings=findings), 1.0).outages
    assert (outage.cause, outage.boards) == ("gpu_missing", ("GPU-1",))


def test_every_second_lost_has_one_cause() -> None:
    excluded = {
        ("slurm", "operator"): ((15.0, 40.0),),
        ("", "operator"): ((15.0, 40.0),),
        ("slurm", "foreign"): ((30.0, 50.0),),
    }
    history = story(node(failed=((10.0, 20.0),), unschedulable=((10.0, 60.0),), excluded=excluded), 1.0)
    assert {cause: total(spans) for cause, spans in history.lost.items()} == {
        "no finding": 10, "an operator (gpuwarden exclude)": 20, "another party": 10, OTHER: 10,
    }  # fmt: skip
    assert total(history.down) == 50
    assert [(exclusion.by, exclusion.start, exclusion.end, exclusion.actuators) for exclusion in history.exclusions] == [
        ("an operator (gpuwarden exclude)", 15, 40, ("slurm",)), ("another party", 30, 50, ("slurm",)),
    ]  # fmt: skip


def test_what_is_not_known_is_neither_up_nor_down() -> None:
    history = story(node(known=((0.0, 40.0), (60.0, END)), failed=((30.0, 40.0),)), 1.0)
    of = figures([history], END)
    assert of.availability == pytest.approx(70 / 80)
    assert of.availability_least == pytest.approx(70 / 100)
    assert of.repair.longest == 30  # until it answers again
    assert of.gpu_hours_lost == pytest.approx(8 * 10 / 3600)


def test_of_what_a_node_has_at_first_sight_the_beginning_is_not_known() -> None:
    (outage,) = story(node(known=((5.0, END),), failed=((5.0, 20.0),)), 1.0).outages
    assert (outage.began, outage.ended) == (False, True)
    (outage,) = story(node(known=((0.0, 50.0),), failed=((5.0, 50.0),)), 1.0).outages
    assert (outage.began, outage.ended) == (True, False)


def test_a_failure_at_first_sight_is_shown_beside_those_that_began() -> None:
    at_first, begun = node(failed=((0.0, 20.0),)), node("n2", failed=((10.0, 20.0),))
    of = figures([story(at_first, 1.0)], END)
    assert (of.failures, of.earlier, of.repair.count) == (0, 1, 0)
    made = report([at_first, begun], Reading((0.0, END), 1, {}, {}, ()), (), ())
    assert (made.fleet.failures, made.fleet.earlier) == (1, 1)
    named = dict(summary(made))
    assert named["failures"].startswith("1 (and 1 when a node was first seen) in ")


def test_one_failure_has_no_mean_and_none_has_nothing() -> None:
    assert (spread([]).count, spread([]).longest) == (0, None)
    assert (spread([5.0]).mean, spread([5.0]).median, spread([5.0]).longest) == (None, None, 5)
    assert (spread([4.0, 8.0]).mean, spread([4.0, 8.0]).shortest) == (6, 4)
    of = figures([story(node(failed=((10.0, 20.0),)), 1.0)], END)
    assert (of.failures, of.mtbf_hours, of.mtbf_low) == (1, None, None)
    assert figures([], END).availability is None


@pytest.mark.parametrize(
    ("count", "low", "high"), [(1, 0.0513, 4.744), (2, 0.355, 6.296), (10, 5.425, 16.96), (100, 84.14, 118.1)]
)
def test_the_interval_of_a_count_is_that_of_the_tables(count: int, low: float, high: float) -> None:
    """Garwood's exact interval of 90 % for a Poisson count; the first bound of a count of one is not shown."""
    bounds = interval(count)
    assert bounds[1] == pytest.approx(high, rel=0.01)
    if count > 1:
        assert bounds[0] == pytest.approx(low, rel=0.03)


def test_nodes_are_joined_by_half_of_their_boards_and_only_one_after_the_other() -> None:
    first, second = node("a", known=((0.0, 40.0),)), node("b", known=((50.0, END),))
    beside = node("c", known=((30.0, END),))
    eight = frozenset(map(str, range(8)))
    half, few = frozenset({*sorted(eight)[:4], "x", "y", "z", "w"}), frozenset({"0", "x"})
    names = [of.names for of in joined([first, second], {first.place: eight, second.place: half})]
    assert names == [("b", "a")]
    assert len(joined([first, second], {first.place: eight, second.place: few})) == 2
    assert len(joined([first, beside], {first.place: eight, beside.place: eight})) == 2
    assert len(joined([first, second], {})) == 2
    moved = node("a", known=((50.0, END),), keys=(("", "gpuwarden", "elsewhere"),))
    assert len(joined([first, moved], {})) == 1


def test_an_address_that_another_machine_was_given_is_two_nodes_and_a_name_that_changes_on_one_machine_is_one() -> None:
    """A fails and is gone; B comes up at its address and is well. Both are known in the step in which the one follows the other."""
    first, second = reused(("a", (0.0, 41.0)), ("b", (40.0, END)), failed=(30.0, 40.0))
    assert ((first.name, first.known, first.failed), first.gone(1000.0)) == (
        ("a", ((0.0, 40.0),), ((30.0, 40.0),)),
        True,
    )
    assert (second.name, second.known, second.failed) == ("b", ((40.0, END),), ())
    eight = frozenset(map(str, range(8)))
    assert len(joined([first, second], {first.place: eight, second.place: frozenset({"x"})})) == 2
    (renamed,) = joined([first, second], {first.place: eight, second.place: eight})
    assert (renamed.names, renamed.known) == (("b", "a"), ((0.0, END),))
    (by_turns,) = reused(("a", (0.0, 40.0)), ("b", (40.0, 60.0)), ("a", (60.0, END)), failed=(30.0, 40.0))
    assert (by_turns.names, by_turns.known) == (("a", "b"), ((0.0, END),))


def reused(*names: tuple[str, Span], failed: Span) -> list[Node]:
    """The nodes of one address: `names` and when they were known."""
    at = (("cluster", ""), ("job", "gpuwarden"), ("instance", "10.0.0.1:9839"))
    spans_by_labels: dict[Labels, Spans] = {}
    for name, span in names:
        labels = (*at, ("node", name))
        spans_by_labels[labels] = union(spans_by_labels.get(labels, ()), (span,))
    sets: dict[str, Set] = {**{name: {} for name in LABELS}, "known": spans_by_labels, "failed": {at: (failed,)}}
    return nodes_of(Reading(period=(0.0, END), step=1, sets=sets, slow={}, warnings=()))
