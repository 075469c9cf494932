"""The proof in small. All of it is `make evaluate`, which runs beside the tests; here is a check of the measurement."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from evaluate.bounds import proportion, rate
from evaluate.classes import CLASSES
from evaluate.fault_class import named
from evaluate.fleet import counted, measure_fleet
from evaluate.jury import Jury, Reported
from evaluate.measure import FaultResult, HealthyResult, measure_days, measure_fault
from evaluate.models import MODELS
from evaluate.node import Node
from evaluate.ordinary import PER_DAY, Ordinary
from evaluate.ordinary_beside import slow_exit
from evaluate.quiet import MOST, WAKE, QuietReplay
from evaluate.report import Results, document, episodes, violations
from gpuwarden.health.conditions import CONDITIONS
from gpuwarden.health.xid.catalogue import XIDS, XidClass
from gpuwarden.policy.model import Budget
from gpuwarden.trace.records import Record
from stories.every import STORIES
from stories.story import StoryResult

DOCUMENT = Path(__file__).parents[2] / "docs/develop/evaluation.md"
SOME = ("Xid 119 and NVML hangs", "row remapping failed, then reboot", "lemon: a failure every other day")


def number(name: str) -> int:
    return [fault.name for fault in CLASSES].index(name)


# --- what is measured


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME)
def test_a_fault_is_detected_in_time_without_false_alarms_and_a_restart_changes_nothing(name: str) -> None:
    result = measure_fault(number(name), seed=1)
    assert list(violations(Results(1, [result], []))) == []
    assert result.delay is not None


@pytest.mark.slow
def test_hours_of_ordinary_work_are_no_fault_and_most_steps_of_them_are_passed_over() -> None:
    result = measure_days(seed=3, days=0.3)
    assert result.wrong == ()
    assert result.passes > 5000
    assert result.judged < result.passes / 2


def test_most_steps_are_passed_over_again_once_a_job_has_ended() -> None:
    jury = Jury()
    jury.replay.quiet = True
    node = Node(jury.take, Random(1))
    node.start_daemon(remembers=False)
    node.run(WAKE + 60.0)
    node.go(slow_exit(node))
    node.run(3600.0)
    passes, judged = jury.passes, jury.replay.judged
    node.run(3600.0)
    assert jury.replay.judged - judged < (jury.passes - passes) / 4


def test_every_condition_and_every_xid_that_takes_a_node_out_has_a_fault_that_must_raise_it() -> None:
    reported = [pattern for fault in CLASSES for pattern in fault.expects]
    codes = {pattern.partition(".")[0].rstrip("*") for pattern in reported}
    assert set(CONDITIONS) - codes == set()
    failing = [n for n, row in XIDS.items() if row.klass is XidClass.FAILURE]
    assert [n for n in failing if not named(tuple(set(reported) - {"xid.*"}), f"xid.{n}")] == []
    assert len({fault.name for fault in CLASSES}) == len(CLASSES)


@pytest.mark.slow
def test_every_ordinary_thing_can_be_judged() -> None:
    for kind in PER_DAY:
        jury = Jury()
        node = Node(jury.take, Random(1), gpus=2)
        node.start_daemon(remembers=False)
        node.run(60.0)
        node.go(kind(node))
        node.run(300.0)
        assert jury.passes > 30


def test_a_bad_driver_on_every_node_is_detected_by_each_and_excludes_no_more_than_the_breaker_allows() -> None:
    fleet = measure_fleet(seed=1, nodes=12)
    assert (fleet.detected, fleet.left, fleet.allowed) == (12, 3, 3)
    assert list(violations(Results(1, [], [], fleet))) == []
    assert "detected on 11 of 12" in next(violations(Results(1, [], [], replace(fleet, detected=11))))


@pytest.mark.parametrize("nodes", [1, 8, 100, 1000])
def test_however_many_fail_in_the_same_second_what_stays_out_is_within_the_budget(nodes: int) -> None:
    most, left = counted([100.2] * nodes, nodes, Budget(), Random(nodes))
    assert left == min(max(1, nodes // 4), 10)
    assert most <= nodes


# --- how


def busy(seed: int, hours: float) -> list[Record]:
    """Ordinary life, twenty times as much of it as usual."""
    records: list[Record] = []
    dice = Random(seed)
    node = Node(records.append, dice, gpus=2, model=sorted(MODELS)[seed % len(MODELS)])
    node.start_daemon(remembers=False)
    for _ in range(20):
        Ordinary(node).begin()
    node.run(3600 * hours)
    return records


def struck_node(name: str, seed: int = 1) -> list[Record]:
    """A fault, with what is healthy before it and twenty minutes behind it."""
    fault, dice = CLASSES[number(name)], Random(seed)
    records: list[Record] = []
    node = Node(records.append, dice, model=dice.choice(fault.models))
    node.start_daemon(remembers=False)
    node.run(1500.0)
    node.go(fault.strike(node, dice.randrange(len(node.gpus))))
    node.run(fault.detected_within + 1200.0)
    return records


Events = dict[str, list[tuple[str, str, float]]]


def judged(records: list[Record], *, quiet: bool) -> tuple[Events, object, int]:
    """Return the events by subject (kind, severity and time), the final verdict, and the number of steps."""
    jury, events = Jury(), dict[str, list[tuple[str, str, float]]]()
    jury.replay.quiet = quiet
    for record in records:
        for step in jury.replay.take(record):
            jury.last = step
            for event in step.events:
                severity = str(event.data.get("severity", event.data.get("to", "")))
                events.setdefault(str(event.key), []).append((str(event.kind), severity, event.at.boottime))
    return events, jury.verdict(), jury.replay.judged


def assert_the_same_but_late_by_time_alone(records: list[Record]) -> int:
    """Return how many steps the quiet replay made."""
    full, end, steps = judged(records, quiet=False)
    quiet, quiet_end, fewer = judged(records, quiet=True)
    assert quiet_end == end
    assert {key: [event[:2] for event in each] for key, each in quiet.items()} == {
        key: [event[:2] for event in each] for key, each in full.items()
    }
    late = [q[2] - f[2] for key in full for q, f in zip(quiet[key], full[key], strict=True)]
    assert all(0.0 <= seconds <= MOST for seconds in late)
    assert sum(seconds > 0.0 for seconds in late) <= 2  # an end by time alone, and the health that follows
    assert fewer < steps
    return fewer


@pytest.mark.slow
def test_passed_over_on_a_healthy_node_is_what_would_have_reported_nothing() -> None:
    assert_the_same_but_late_by_time_alone(busy(1, 1.5))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["power brake, a quarter of the clock", "a collective that does not end", "NVLink errors, 2 a minute"],
)
def test_passed_over_on_faulty_nodes_is_what_would_have_reported_nothing(name: str) -> None:
    assert_the_same_but_late_by_time_alone(struck_node(name))


def test_the_same_seed_gives_the_same_story() -> None:
    assert busy(1, 0.5) == busy(1, 0.5)
    assert busy(1, 0.5) != busy(2, 0.5)


def test_a_quiet_replay_makes_every_step_unless_quiet_is_set() -> None:
    records = busy(1, 0.2)
    replay, steps = QuietReplay(), 0
    for record in records:
        steps += len(replay.take(record))
    assert replay.judged == steps


# --- what is reported


def test_reports_within_ten_minutes_are_one_false_alarm() -> None:
    reported = [
        Reported(at, f"nvlink_down@link/x/{n}", "failure", "") for n, at in enumerate((0.0, 1.0, 590.0, 1300.0))
    ]
    assert [episode.seconds for episode in episodes(reported)] == [0.0, 1300.0]


def test_bounds_are_the_textbooks() -> None:
    assert rate(0, 1000)[1] * 1000 == pytest.approx(2.9957, abs=1e-4)  # the rule of three
    assert rate(3, 1) == pytest.approx((0.6187, 8.7673), abs=1e-4)
    assert proportion(3, 10) == pytest.approx((0.0667, 0.6525), abs=1e-4)
    assert proportion(50, 50)[0] == pytest.approx(0.05 ** (1 / 50), abs=1e-6)
    assert proportion(0, 5)[0] == 0.0


def struck(**changes: object) -> FaultResult:
    well = {
        "fault": "Xid 79", "seed": 7, "model": "H100", "delay": 0.5, "ended": 60.0, "wrong": (), "forgot": "", "slowest_step": 0.0,
    }  # fmt: skip
    return FaultResult(**(well | changes))  # type: ignore[arg-type]  # as the fields are


def lived(*reported: Reported, days: float = 50.0) -> HealthyResult:
    return HealthyResult(
        seed=8, model="H100", days=days, wrong=reported, true_warnings=0, ordinary={}, passes=1, judged=1, spent=1.0, memory=(1.0, 1.0)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("result", "detected"),
    [
        (struck(delay=None), "not detected"),
        (struck(delay=1.1), "detected after 1.1 s, 1 allowed"),
        (struck(ended=None), "not healthy within 3900 s of the repair"),
        (struck(wrong=("warning x@node",)), "reported besides: warning x@node"),
        (struck(forgot="restart at record 3"), "restart at record 3"),
    ],
)
def test_a_violated_requirement_of_a_fault_is_reported_with_the_command_that_reproduces_it(
    result: FaultResult, detected: str
) -> None:
    (violation,) = violations(Results(1, [result], []))
    assert detected in violation
    assert '`--fault "Xid 79" --times 1 --seed 7`' in violation


def test_one_false_failure_is_too_many_and_so_are_five_false_warnings_in_a_thousand_days() -> None:
    def found(results: list[HealthyResult]) -> list[str]:
        return list(violations(Results(1, [], results)))

    failure, warnings = (
        Reported(1.0, "x@node", "failure", ""),
        [Reported(1e4 * n, "y@node", "warning", "") for n in range(5)],
    )
    assert "--healthy 50 --seed 8" in found([lived(failure)])[0]
    assert found([lived(*warnings[:4], days=1000.0)]) == []
    assert "5 false warnings in 1000 node-days" in found([lived(*warnings, days=1000.0)])[0]
    assert found([lived(warnings[0])]) == []  # one in fifty days proves nothing of the rate
    assert len(found([lived(*warnings[:2])])) == 1


def test_a_healthy_machine_of_a_story_that_is_accused_is_a_violation() -> None:
    right = [
        StoryResult(
            id=s.id,
            reported=tuple(sorted(s.expects)),
            ended=s.ends,
            restarted=(),
            ended_restarted=s.ends,
            incidents=s.incidents or 0,
        )
        for s in STORIES
    ]
    assert list(violations(Results(1, [], [], stories=right))) == []
    n = next(n for n, story in enumerate(STORIES) if not story.expects)
    accused = [*right[:n], replace(right[n], reported=("failure xid.79",), ended="failure"), *right[n + 1 :]]
    first, second = violations(Results(1, [], [], stories=accused))
    assert first == f"{STORIES[n].id}, {STORIES[n].name}: raised failure xid.79, wanted nothing"
    assert "ends failure, wanted healthy" in second
    text = document(Results(1, [], [], stories=accused))
    assert "1 of them are accused" in text
    assert all(story.source in text for story in STORIES)


def test_the_document_has_a_row_for_every_fault_and_its_own_head() -> None:
    results = Results(1, [struck(fault=fault.name) for fault in CLASSES], [lived()])
    rows = document(results).splitlines()
    assert rows[0] == "# How well it judges"
    assert [fault.name for fault in CLASSES if not any(fault.name in row for row in rows)] == []


@pytest.mark.skipif(not DOCUMENT.exists(), reason="docs/develop/evaluation.md is written by `make evaluate-full`")
def test_the_published_table_is_of_the_faults_of_this_code_and_nothing_required_is_missing() -> None:
    text = DOCUMENT.read_text()
    rows = {row.split("|")[1].strip().strip("*") for row in text.splitlines() if row.startswith("| ")}
    assert [fault.name for fault in CLASSES if fault.name not in rows] == []
    assert text.rstrip().endswith("None.")
