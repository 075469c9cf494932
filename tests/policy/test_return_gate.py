"""The return gate: what must be tested before gpuwarden lifts an exclusion, what passes, what is tried again, and when only a person goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from gpuwarden.features.active_test.gate.requirement import PassedTest, Sees, gate_of
from gpuwarden.features.active_test.gate.rules import (
    AGAIN_AFTER,
    CUT_MOST,
    OVERTAKEN,
    Assessed,
    GateState,
    begun,
    ended,
    hindered,
    untested,
    void,
)
from gpuwarden.features.active_test.gate.state import Gate, GateResult, passed
from gpuwarden.features.active_test.judging.judgement import judge
from gpuwarden.features.active_test.judging.outcome import ActiveVerdict
from gpuwarden.features.active_test.judging.past import PastTest, kept
from gpuwarden.features.active_test.judging.results import tested as result_event
from gpuwarden.features.active_test.memory import NAME
from gpuwarden.health.event_data import write
from gpuwarden.health.model import NODE, Advice, Event, EventKind, Finding, Json, Key, Subject, gpu
from gpuwarden.policy import orders
from gpuwarden.policy.model import Act, NodeState, Settings
from gpuwarden.policy.situation import Situation
from gpuwarden.policy.state import PolicyState
from gpuwarden_collectors.active_test.level import Level
from support.active_tests import healthy
from support.policy_story import SETTINGS, Story, announced, called_off, kinds, restored, xid
from support.snapshots import finding, gpu_verdict, slot

GATED = replace(SETTINGS, restore_after=0.0)
GPUS = range(8)
UUIDS = [gpu_verdict(number).uuid for number in GPUS]
PASSED, WARNING, FAILURE, NO_VERDICT = (
    ActiveVerdict.NOTHING_FOUND, ActiveVerdict.WARNING, ActiveVerdict.FAILURE, ActiveVerdict.NO_VERDICT,
)  # fmt: skip


class GatedStory(Story):
    """`jobs`: the scheduler has some here. `testing`: a test runs. `own`: the test that this daemon runs. `last_read`: in place of
    what a read would show now.
    """

    def __init__(self, settings: Settings = GATED, *, gated: bool = True) -> None:
        self.gated = gated
        self.jobs, self.testing, self.own, self.used = False, False, "", False
        self.last_read: NodeState | None = None
        super().__init__(settings)

    @property
    def node_state(self) -> NodeState:
        state = self.last_read or super().node_state
        return replace(state, empty=not self.jobs) if state.reachable else state

    def first(self) -> PolicyState:
        return PolicyState(requirements={NAME: PassedTest(Level.QUICK)} if self.gated else {})

    def situation(self) -> Situation:
        sees = Sees(run=self.own, testing=self.testing, gpus_used=self.used)
        return replace(super().situation(), features={NAME: sees})

    @property
    def gate(self) -> Gate:
        gate = gate_of(self.state)
        assert gate is not None
        return gate

    def stands(self) -> GateState | None:
        """Return the state of the gate by the last decision."""
        answer = None if self.last is None else self.last.answers.get(NAME)
        return answer.state if isinstance(answer, Assessed) else None

    def text(self) -> str:
        answer = None if self.last is None else self.last.answers.get(NAME)
        return "" if answer is None else answer.text

    def results(
        self,
        verdict: ActiveVerdict = PASSED,
        level: Level = Level.QUICK,
        warned: Mapping[int, str] | None = None,
        **others: ActiveVerdict,
    ) -> GatedStory:
        """Record results for all GPUs, those of `others` (g3=…) apart. `warned`: by GPU, what was found on it."""
        self.waits(10.0)
        for number in GPUS:
            active_verdict = others.get(f"g{number}", verdict)
            test = PastTest(
                at=self.now, uuid=UUIDS[number], started=self.now.wall - 6, level=level, verdict=active_verdict, seconds=6.0, name="H100",
                driver="580", kernels_version=1, warned=(warned or {}).get(number, ""),
            )  # fmt: skip
            self.took([result_event(slot(number), test, self.boot_id)])
        return self

    def begins(self, *untestable: int) -> GatedStory:
        """Begin a test that is due, as the daemon does. `untestable`: GPUs that are left out."""
        assert self.stands() is GateState.DUE, self.text()
        self.own = "a1"
        self.gates(EventKind.GATE_BEGUN, begun(self.gate, self.own, map(slot, untestable)))
        self.passes()
        assert self.stands() is GateState.RUNNING
        return self

    def ends(self, text: str = "busy") -> GatedStory:
        self.own = ""
        self.gates(EventKind.GATE_ENDED, ended(self.gate, Level.QUICK, self.situation().verdict.gpus, text, self.now))
        self.passes()
        return self

    def gates(self, kind: EventKind, gate: Gate) -> None:
        self.records(kind, data=write(gate))

    def line(self) -> str:
        """Why the node does not come back, as status has it."""
        assert self.last is not None
        return self.last.blocked.get("slurm", "")

    def is_out(self) -> bool:
        return bool(self.reason)


def test_an_exclusion_whose_write_is_not_read_back_yet_is_not_lifted_untested_once_its_failure_has_ended() -> None:
    story = GatedStory()
    story.done = (True, False)  # written, and the answer is on its way
    story.passes()
    story.last_read = story.node_state
    story.fails().heals(passes=GATED.restore_passes + 1)
    assert [intent.act for intent in story.state.pending.values()] == [Act.EXCLUDE]
    assert story.line() == "it may be written since the last read"
    story.done, story.last_read = (True, True), None
    story.passes(2)
    assert (list(story.state.holds), story.stands()) == (["slurm"], GateState.DUE)
    story.results().passes()
    assert story.writes == ["exclude", "restore"]


def test_an_exclusion_that_was_not_written_is_dropped_after_a_read_from_when_its_failure_had_ended() -> None:
    story = GatedStory()
    story.done = (False, False)
    story.passes()
    story.last_read = story.node_state
    story.fails().heals(passes=GATED.restore_passes + 1)
    assert len(story.state.pending) == 1
    story.done, story.last_read = (True, True), None
    story.passes(2)
    assert (story.writes, story.state.pending, story.state.holds) == ([], {}, {})


def mended(story: GatedStory | None = None) -> GatedStory:
    """Return a node that failed, and was healthy for as long as it must."""
    story = story or GatedStory()
    story.fails()
    story.records(EventKind.CLEARED, xid().key)
    story.heals(passes=4)
    return story


def test_a_mended_node_stays_out_until_a_test_found_nothing_on_every_gpu() -> None:
    story = mended()
    assert (story.is_out(), story.stands()) == (True, GateState.DUE)
    story.begins().results().passes(1)
    assert (story.is_out(), story.stands()) == (True, GateState.RUNNING), "the test has not ended"
    story.ends()
    assert (story.is_out(), gate_of(story.state)) == (False, None)
    gate_ends = [event for event in story.ledger if event.kind == EventKind.GATE_ENDED]
    assert gate_ends[0].data["result"] == "passed"


def test_without_the_gate_it_comes_back_by_itself() -> None:
    story = mended(GatedStory(gated=False))
    assert (story.is_out(), EventKind.GATE_WANTED in kinds(story)) == (False, False)


def test_nothing_is_gated_in_mode_observe() -> None:
    story = GatedStory(replace(GATED, enforce=False))
    story.fails().heals(passes=5)
    assert (story.stands(), EventKind.GATE_WANTED in kinds(story)) == (None, False)


def test_what_was_demanded_outlasts_mode_observe_and_a_checkpoint_in_it() -> None:
    story = mended()
    story.settings = replace(GATED, enforce=False)
    story.checkpoints().restarts_daemon().passes(3)
    assert story.is_out()
    story.settings = GATED
    story.passes(3)
    assert (story.is_out(), story.stands()) == (True, GateState.DUE)
    story.results().passes(3)
    assert not story.is_out()


@pytest.mark.parametrize(
    ("subject", "gated"),
    [(gpu(slot(3)), True), (Subject("link", slot(3), "4"), True), (Subject("switch", "0000:05:00.0"), True),
     (Subject("mount", "", "/data"), False), (NODE, False)],
    ids=str,
)  # fmt: skip
def test_failures_of_gpus_links_and_switches_are_gated_and_no_others(subject: Subject, gated: bool) -> None:
    story = GatedStory()
    story.fails(finding("xid", subject)).heals(passes=5)
    assert (gate_of(story.state) is not None, story.is_out()) == (gated, gated)


def test_a_node_all_of_whose_links_are_down_is_gated_with_a_failure_of_each_gpu() -> None:
    story = GatedStory()
    down = [
        finding("nvlink_down", Subject("link", slot(number), str(link_number)))
        for number in GPUS
        for link_number in range(18)
    ]
    story.fails(*down).passes(3)
    assert kinds(story).count(EventKind.GATE_WANTED) == 1
    for number in GPUS:
        assert f"nvlink_down@link/{slot(number)}/" in story.gate.failures
    story.heals(passes=4)
    assert story.stands() is GateState.DUE


@pytest.mark.parametrize("cause", ["orders", "notices"])
def test_exclusions_for_other_causes_are_not_gated(cause: str) -> None:
    story = GatedStory()
    story.took([
        orders.exclude("al", "fan", story.boot_id, story.now) if cause == "orders"
        else orders.announce(120.0, "", "root", story.boot_id, story.now)
    ])  # fmt: skip
    story.passes(5)
    assert (story.is_out(), gate_of(story.state)) == (True, None)


# --- beside an announced end of the machine


def needs_a_test(story: GatedStory) -> bool:
    """Return True if the node stays out until a test passed, and returns then."""
    due = story.is_out() and story.stands() is GateState.DUE
    return due and not story.begins().results().ends().is_out()


def test_a_termination_that_is_called_off_brings_back_no_failed_gpu_untested() -> None:
    story = mended()
    announced(story).passes(5)
    assert story.stands() is None, "nothing is tested on a machine that ends"
    called_off(story).heals(passes=4)
    assert needs_a_test(story)


def test_a_gpu_that_fails_while_the_end_of_the_machine_is_announced_is_tested_when_it_is_called_off() -> None:
    story = GatedStory()
    announced(story)
    mended(story)
    called_off(story).heals(passes=4)
    assert needs_a_test(story)


def test_a_person_is_needed_after_a_termination_that_is_called_off_if_one_was_needed_before() -> None:
    story = needs_person()
    announced(story)
    called_off(story).heals(passes=4)
    assert (story.stands(), story.is_out()) == (GateState.PERSON, True)


@pytest.mark.parametrize("written", [True, False])
def test_a_termination_called_off_before_its_exclusion_was_confirmed_brings_back_no_failed_gpu_untested(
    *, written: bool
) -> None:
    story = mended()
    story.done = (written, False)
    announced(story)
    story.reachable, story.done = False, (True, True)
    called_off(story).heals(passes=4)
    story.reachable = True
    story.passes(3)
    assert needs_a_test(story)


def test_without_a_failure_a_termination_that_is_called_off_needs_no_test() -> None:
    story = GatedStory()
    announced(story)
    called_off(story).heals(passes=4)
    assert (story.is_out(), EventKind.GATE_WANTED in kinds(story)) == (False, False)


# --- what passes


@pytest.mark.parametrize(
    ("level", "others", "passes"),
    [
        (Level.QUICK, {}, True),
        (Level.STANDARD, {}, True),
        (Level.GATE, {}, False),
        (Level.QUICK, {"g3": WARNING}, False),
        (Level.QUICK, {"g5": WARNING}, True),
        (Level.QUICK, {"g5": FAILURE}, False),
        (Level.QUICK, {"g5": NO_VERDICT}, False),
    ],
)
def test_what_passes(level: Level, others: dict[str, ActiveVerdict], passes: bool) -> None:
    """A warning is no pass of the GPU that failed, and one of another GPU: for it alone the node would not be out."""
    story = mended().begins().results(level=level, warned=None, **others).ends()
    assert story.is_out() is not passes


def test_a_node_without_a_gpu_that_is_expected_is_not_one_that_passed() -> None:
    gate = mended().gate
    assert not passed(gate, Level.QUICK, ())
    assert not passed(gate, Level.QUICK, [replace(gpu_verdict(0), expected=False)])


def test_for_a_switch_every_gpu_must_be_without_a_warning() -> None:
    story = GatedStory()
    story.fails(finding("xid", Subject("switch", "0000:05:00.0"))).heals(passes=4)
    story.begins().results(g5=WARNING).ends()
    assert (story.is_out(), story.gate.result) == (True, GateResult.FAILED)


def test_the_test_of_a_person_counts_as_well_and_gpus_may_pass_one_after_the_other() -> None:
    story = mended()
    story.results(NO_VERDICT, g0=PASSED).passes()
    assert story.is_out()
    story.testing = True
    story.results(PASSED, g0=NO_VERDICT).passes()
    assert (story.is_out(), story.stands()) == (True, GateState.WAITING), "its processes may be there yet"
    story.testing = False
    assert not story.passes().reason


def test_a_test_from_before_the_failure_or_before_its_end_does_not_count() -> None:
    story = GatedStory()
    story.results().fails()
    story.results()
    story.records(EventKind.CLEARED, xid().key)
    story.heals(passes=4)
    assert (story.is_out(), story.stands()) == (True, GateState.DUE)


def test_a_result_of_a_test_that_began_before_the_end_of_the_failure_does_not_count() -> None:
    story = mended()
    story.records(EventKind.RAISED, xid().key)
    begun_before = story.now
    for number in GPUS:
        test = PastTest(
            at=begun_before, uuid=UUIDS[number], started=begun_before.wall - 6, level=Level.QUICK, verdict=PASSED, seconds=6.0,
            name="H100", driver="580", kernels_version=1,
        )  # fmt: skip
        story.took([result_event(slot(number), test, story.boot_id)])
    story.passes()
    assert story.is_out()


@pytest.mark.parametrize(("defect", "out"), [("test_hung", True), ("test_failed.compute", True), ("", False)])
def test_what_a_later_test_without_a_verdict_found_takes_a_pass_back(defect: str, out: bool) -> None:
    """Busy or interrupted, it says nothing of the GPU; a hang or a wrong result does, whoever else was there."""
    story = mended().begins().results(g7=NO_VERDICT).ends()
    assert story.is_out()
    story.waits(AGAIN_AFTER)
    story.begins()
    story.results(g3=NO_VERDICT, warned={3: defect}).ends()
    assert story.is_out() is out
    if out:
        story.waits(AGAIN_AFTER)
        story.begins().results().ends()
        assert not story.is_out()


def test_a_result_that_was_handed_in_long_after_its_test_is_as_old_as_the_test() -> None:
    """Results come together, once the last GPU has been tested again, and a daemon that restarts takes them."""
    story = mended().begins()
    tested = story.now
    story.waits(20.0)
    story.fails(xid(5, number=48))
    story.records(EventKind.CLEARED, xid(5, number=48).key)
    story.waits(30.0)
    for number in GPUS:
        test = healthy(number, uuid=UUIDS[number], started=tested)
        result = kept(test, judge([test])[UUIDS[number]], story.now)
        story.took([result_event(slot(number), result, story.boot_id)])
    story.ends()
    story.heals(passes=4)
    assert story.is_out()


def test_a_new_failure_during_the_test_makes_it_worth_nothing() -> None:
    story = mended().begins()
    story.fails(xid(5, number=48))
    story.results().ends()
    story.records(EventKind.CLEARED, xid(5, number=48).key)
    story.heals(passes=4)
    assert story.is_out()
    assert str(xid(5, number=48).key) in story.gate.failures
    story.waits(AGAIN_AFTER)
    story.begins().results().ends()
    assert not story.is_out()


def test_a_failure_that_returns_during_the_test_costs_no_try_and_a_gate_that_passed_says_so() -> None:
    story = mended().begins()
    story.records(EventKind.RAISED, xid().key)
    story.fails()
    story.results(NO_VERDICT).ends()
    assert (story.gate.tries, story.gate.cut, story.gate.text) == (0, 1, OVERTAKEN)
    story.records(EventKind.CLEARED, xid().key)
    story.heals(passes=4)
    story.waits(AGAIN_AFTER)
    story.begins(6).results(g1=WARNING, g6=NO_VERDICT).ends("it gave no result")
    assert not story.is_out()
    last = [event for event in story.ledger if event.kind == EventKind.GATE_ENDED][-1]
    text = "a test of level quick found nothing on 6 GPUs; a warning on 1; 1 that cannot be tested left out"
    assert (last.data["result"], last.data["text"]) == ("passed", text)


# --- while it waits for a person


def test_what_needs_a_person_is_tested_while_it_waits_and_the_line_says_what_came_of_it() -> None:
    """The person who inspects the GPU must know it, and comes hours later."""
    story = GatedStory()
    story.jobs = True
    story.fails(xid(advice=Advice.INSPECT_HARDWARE))
    story.records(EventKind.CLEARED, xid().key)
    story.heals(passes=4)
    person = "it was excluded for what needs an operator: only a person restores it (gpuwarden restore)"
    assert story.line() == (
        f"{person}; no test has passed since the failure: a test of level quick is next,"
        " it waits: slurm has jobs here (drained), which must end first"
    )
    story.jobs = False
    story.passes()
    story.begins()
    assert story.line() == f"{person}; a test of level quick runs"
    story.results(NO_VERDICT).ends("busy")
    assert "no test has passed since the failure, the last one gave no verdict (busy)" in story.line()
    story.waits(AGAIN_AFTER)
    story.begins().results().ends()
    story.waits(3600)
    assert (story.is_out(), story.line()) == (True, f"{person}; a test of level quick found nothing on 8 GPUs")
    assert story.stands() is GateState.PASSED
    story.records(EventKind.ACKNOWLEDGED, xid().key)
    story.passes(2)
    assert not story.is_out()


@pytest.mark.parametrize("impossible", [True, False])
def test_that_it_could_not_be_tested_is_said_to_the_person_too(impossible: bool) -> None:
    story = GatedStory()
    story.fails(xid(advice=Advice.INSPECT_HARDWARE)).heals(passes=4)
    over = (void if impossible else hindered)(story.gate, "libcuda.so.1 cannot be loaded")
    story.gates(EventKind.GATE_ENDED, over)
    story.passes(2)
    came = "this host cannot test:" if impossible else "no test has passed: no test could begin for 30 minutes"
    assert (story.is_out(), came in story.line()) == (True, True)


def test_what_an_operator_excluded_is_not_tested_by_itself() -> None:
    story = mended()
    story.took([orders.exclude("al", "new fans", story.boot_id, story.now)])
    story.passes(3)
    assert story.stands() is None


# --- what does not


def test_a_node_on_which_each_test_is_ended_early_is_not_tested_for_ever() -> None:
    story = mended()
    for _ in range(CUT_MOST):
        story.begins()
        story.own = ""
        over = ended(story.gate, Level.QUICK, story.situation().verdict.gpus, "SIGTERM", story.now, is_try=False)
        story.gates(EventKind.GATE_ENDED, over)
        story.passes()
        assert story.gate.tries == 0
        story.waits(AGAIN_AFTER)
    assert story.stands() is GateState.PERSON
    assert "6 tests were ended early before its return (SIGTERM)" in story.text()
    story.reboots().heals(passes=5)
    assert story.stands() is GateState.DUE


def test_a_test_that_could_not_begin_for_long_needs_a_person() -> None:
    story = mended()
    story.gates(EventKind.GATE_ENDED, hindered(story.gate, "libcuda.so.1 cannot be loaded"))
    story.waits(7200)
    assert (story.stands(), story.is_out(), story.gate.tries) == (GateState.PERSON, True, 0)
    assert "no test could begin for 30 minutes before its return (libcuda.so.1 cannot be loaded)" in story.text()
    story.results().passes(1)
    assert not story.is_out()


def test_no_verdict_is_tried_three_times_within_half_an_hour_and_then_needs_a_person() -> None:
    story, first = mended(), 0.0
    for number in range(3):
        story.begins()
        first = first or story.now.boottime
        story.results(NO_VERDICT).ends("GPU 3: busy: used by process 77 (python)")
        if number < 2:
            assert story.stands() is GateState.WAITING
            assert "gave no verdict (GPU 3: busy: used by process 77 (python))" in story.text()
            story.waits(AGAIN_AFTER)
    assert story.now.boottime - first < 1800
    story.waits(7200)
    assert (story.stands(), story.is_out()) == (GateState.PERSON, True)
    assert "3 tests gave no verdict before its return (GPU 3: busy" in story.text()
    assert "gpuwarden restore" in story.text()


def needs_person() -> GatedStory:
    story = mended()
    for _ in range(3):
        story.begins().ends()
        story.waits(AGAIN_AFTER)
    assert story.stands() is GateState.PERSON
    return story


def test_then_a_test_by_a_person_brings_it_back() -> None:
    story = needs_person()
    story.results().passes(1)
    assert not story.is_out()


def test_a_reboot_begins_the_tries_anew() -> None:
    story = needs_person()
    story.reboots().heals(passes=5)
    assert story.stands() is GateState.DUE


def test_a_test_in_which_the_machine_goes_down_is_not_begun_after_each_boot_for_ever() -> None:
    story = mended()
    for boot in ("b1", "b2", "b3"):
        story.begins()
        story.own = ""
        story.reboots(boot).heals(passes=5)
    assert (story.stands(), story.is_out()) == (GateState.PERSON, True)
    assert "3 tests gave no verdict before its return (the machine went down while the test ran)" in story.text()
    story.reboots("b4").heals(passes=5)
    assert story.stands() is GateState.DUE, "somebody has rebooted it"


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (
            mended,
            "no test has passed since the failure: a test of level quick is next; wait for it, or test it",
        ),
        (lambda: mended().begins(), "a test of level quick runs; wait for it, or test it"),
        (needs_person, r"no test has passed: 3 tests gave no verdict \(busy\); test it \(gpuwarden test"),
    ],
    ids=["due", "runs", "person"],
)
def test_a_person_restores_an_untested_node_only_by_saying_so(made: Callable[[], GatedStory], why: str) -> None:
    story = made()
    with pytest.raises(ValueError, match=f"not restored: {why}.*gpuwarden restore --untested"):
        restored(story)
    story.passes()
    assert story.is_out()
    restored(story, untested=True)
    story.passes()
    assert (story.is_out(), gate_of(story.state)) == (False, None)
    forced = made()
    restored(forced, force=True)
    forced.passes()
    assert not forced.is_out()


@pytest.mark.parametrize("void_gate", [True, False])
def test_a_person_restores_what_passed_or_can_never_be_tested_as_without_a_gate(void_gate: bool) -> None:
    story = GatedStory()
    story.fails(xid(advice=Advice.INSPECT_HARDWARE))
    story.records(EventKind.CLEARED, xid().key)
    story.heals(passes=4)
    if void_gate:
        story.gates(EventKind.GATE_ENDED, void(story.gate, "no libcuda"))
        story.passes()
    else:
        story.begins().results().ends()
    assert story.is_out()
    restored(story)
    story.passes()
    assert not story.is_out()


def broken() -> Finding:
    """Return the finding that a failed test raises, as the judge has it."""
    return replace(finding("test_failed", gpu(slot(3)), detail="memory"), advice=Advice.INSPECT_HARDWARE)


def test_a_failed_test_keeps_the_node_out_with_a_finding_and_does_not_loop() -> None:
    story = mended().begins()
    story.results(g3=FAILURE)
    story.fails(broken())
    story.ends("GPU 3: memory: 1 wrong word")
    assert story.gate.result is GateResult.FAILED
    story.waits(4 * AGAIN_AFTER)
    assert (story.is_out(), kinds(story).count(EventKind.GATE_BEGUN)) == (True, 1)


def test_after_two_failed_tests_of_one_exclusion_the_gpu_is_to_be_inspected() -> None:
    story = mended()
    for _ in range(2):
        story.begins().results(g3=FAILURE)
        story.fails(broken())
        story.ends("GPU 3: memory: 1 wrong word")
        story.records(EventKind.ACKNOWLEDGED, broken().key)
        story.heals(passes=4)
        story.waits(AGAIN_AFTER)
    assert story.stands() is GateState.PERSON
    assert "inspect the GPU: 2 tests failed before its return (GPU 3: memory: 1 wrong word)" in story.text()


def test_a_board_that_was_replaced_is_tested_too() -> None:
    story = GatedStory()
    story.fails(broken())
    story.records(EventKind.GPU_REPLACED, Key("gpu", gpu(slot(3))))
    story.records(EventKind.CLEARED, broken().key)
    story.heals(passes=4)
    assert story.stands() is GateState.DUE


def test_the_test_that_ends_a_finding_of_tests_is_itself_the_one_that_passes() -> None:
    """An operator acknowledges that the GPU was inspected, as after every finding that asks for it."""
    story = GatedStory()
    story.fails(broken())
    story.results()
    story.records(EventKind.CLEARED, broken().key)
    story.heals(passes=4)
    assert story.is_out()
    story.records(EventKind.ACKNOWLEDGED, broken().key)
    story.passes()
    assert not story.is_out()


def test_a_host_that_cannot_test_comes_back_as_without_a_gate_and_the_ledger_says_why() -> None:
    story = mended()
    story.gates(EventKind.GATE_ENDED, void(story.gate, "libcuda.so.1 cannot be loaded"))
    story.passes()
    assert not story.is_out()


def test_a_gate_that_was_void_counts_again_after_the_next_failure() -> None:
    story = mended()
    story.gates(EventKind.GATE_ENDED, void(story.gate, "no libcuda"))
    story.records(EventKind.RAISED, xid().key)
    story.passes()
    assert story.stands() is GateState.DUE


# --- GPUs that cannot be tested beside others that can


@pytest.mark.parametrize(
    ("number", "verdict", "passes"),
    [(3, PASSED, True), (3, WARNING, False), (3, NO_VERDICT, False), (3, FAILURE, False), (6, NO_VERDICT, False)],
)
def test_a_gpu_that_cannot_be_tested_is_left_out_where_the_exclusion_is_about_another(
    number: int, verdict: ActiveVerdict, passes: bool
) -> None:
    others = {f"g{number}": verdict, "g5": NO_VERDICT}
    story = mended().begins(5).results(level=Level.QUICK, warned=None, **others).ends()
    assert story.is_out() is not passes


def test_a_gpu_that_was_left_out_counts_once_somebody_has_tested_it() -> None:
    story = mended().begins(5).results(g5=NO_VERDICT, g3=NO_VERDICT).ends()
    story.results(g5=FAILURE).passes()
    assert story.is_out()


def test_a_gpu_that_was_left_out_is_tested_when_it_can_be() -> None:
    story = mended().begins(5).results(g5=NO_VERDICT, g3=NO_VERDICT).ends()
    story.waits(AGAIN_AFTER)
    story.begins().results(g5=NO_VERDICT).ends()
    assert story.is_out()


def test_a_node_none_of_whose_gpus_can_be_tested_has_not_passed() -> None:
    gate = begun(mended().gate, "a1", [slot(number) for number in GPUS])
    assert not passed(gate, Level.QUICK, [gpu_verdict(number) for number in GPUS])


@pytest.mark.parametrize(
    ("failed", "void_by"),
    [
        ([gpu(slot(3))], ""),
        ([gpu(slot(5))], "GPU 5: MIG is on"),
        ([Subject("link", slot(5), "4")], "GPU 5: MIG is on"),
        ([gpu(slot(3)), gpu(slot(5))], ""),
        ([gpu(slot(5)), gpu(slot(6))], "GPU 5: MIG is on; GPU 6: MIG is on"),
        ([Subject("switch", "0000:05:00.0")], ""),
    ],
    ids=str,
)
def test_the_gate_is_void_only_if_no_gpu_that_the_exclusion_is_about_can_be_tested(
    failed: list[Subject], void_by: str
) -> None:
    story = GatedStory()
    story.fails(*(finding("xid", subject) for subject in failed)).heals(passes=4)
    assert untested(story.gate, {slot(number): f"GPU {number}: MIG is on" for number in (5, 6)}) == void_by


def test_a_failure_of_a_gpu_that_was_left_out_begins_a_gate_that_leaves_out_none() -> None:
    story = mended().begins(5).results(g5=NO_VERDICT, g3=NO_VERDICT).ends()
    story.fails(xid(5))
    story.records(EventKind.CLEARED, xid(5).key)
    story.heals(passes=4)
    story.results(g5=NO_VERDICT).passes()
    assert (story.is_out(), story.gate.untestable) == (True, "")


# --- when


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda story: setattr(story, "jobs", True), "slurm has jobs here"),
        (lambda story: setattr(story, "testing", True), "another test runs now"),
    ],
)
def test_it_waits_for_jobs_and_other_tests_and_no_try_is_lost(change: Callable[[GatedStory], None], why: str) -> None:
    story = GatedStory()
    change(story)
    mended(story).waits(7200)
    assert (story.stands(), story.gate.tries) == (GateState.WAITING, 0)
    assert why in story.text()
    story.jobs = story.testing = False
    story.passes()
    assert story.stands() is GateState.DUE


def test_where_no_scheduler_names_jobs_it_waits_for_the_processes_on_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    story = GatedStory()
    monkeypatch.setattr(GatedStory, "node_state", Story.node_state)
    story.used = True
    mended(story)
    assert (story.stands(), "processes use the GPUs" in story.text()) == (GateState.WAITING, True)
    story.used = False
    story.passes()
    assert story.stands() is GateState.DUE


def test_a_test_that_a_killed_daemon_left_is_over_once_its_lease_is_and_counts_as_a_try() -> None:
    story = mended().begins()
    story.own, story.testing = "", True
    story.restarts_daemon().heals(passes=5)
    assert (story.stands(), story.gate.tries) == (GateState.RUNNING, 0)
    story.testing = False
    story.passes(2)
    assert (story.stands(), story.gate.tries) == (GateState.DUE, 1)


def test_a_test_that_passed_while_the_daemon_was_killed_has_passed() -> None:
    story = mended().begins()
    story.results()
    story.own = ""
    story.restarts_daemon().heals(passes=5)
    assert not story.is_out()


@pytest.mark.parametrize("upto", range(6))
def test_a_checkpoint_at_any_moment_changes_nothing(upto: int) -> None:
    story = GatedStory()
    steps: list[Callable[[], object]] = [
        lambda: mended(story), lambda: story.begins(6), lambda: story.results(g3=WARNING), story.ends, lambda: story.results(g3=PASSED, g4=NO_VERDICT),
    ]  # fmt: skip
    for step in steps[:upto]:
        step()
    before = gate_of(story.state)
    assert gate_of(story.checkpoints().restarts_daemon().state) == before


def test_a_ledger_without_a_gate_has_none() -> None:
    story = Story().fails()
    assert gate_of(story.restarts_daemon().state) is None


def test_a_gate_of_another_version_or_of_garbage_is_read_as_far_as_it_goes() -> None:
    story = GatedStory()
    story.fails()
    data: dict[str, Json] = {
        "failures": "xid.79@gpu/x",
        "results": "a b=c d=quick:nonsense",
        "tries": "many",
        "result": "perhaps",
        "new": 1,
    }
    story.took([Event(kind=EventKind.GATE_WANTED, at=story.now, boot_id=story.boot_id, data=data)])
    story.heals(passes=4)
    assert (story.stands(), story.gate.tries) == (GateState.DUE, 0)
