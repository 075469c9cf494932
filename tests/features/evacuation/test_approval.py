"""The end of a machine is approved early only where that is configured, for this machine alone, and with nothing left to lose."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from gpuwarden.features.evacuation.policy.approval import RESTS, TRIES_MOST
from gpuwarden.features.evacuation.policy.events import saved
from gpuwarden.features.evacuation.policy.plan import plan
from gpuwarden.features.evacuation.policy.preview import preview
from gpuwarden.features.evacuation.policy.steps import Approve
from gpuwarden.health.model import EventKind
from gpuwarden.policy.model import Result
from gpuwarden_collectors.cloud.facts import Approval
from gpuwarden_collectors.receivers.facts import Kind
from support.evacuations import BOOT, SETTINGS, Story, announced, local, process

APPROVING = replace(SETTINGS, final_node_state="none")


def azure(within: float = 600.0, approval: Approval = Approval.ALONE) -> Story:
    story = Story(APPROVING, unschedulable=True)
    return story.announces(announced(within, source="azure", approval=approval))


def plan_text(story: Story) -> str:
    assert story.notice is not None
    return preview(story.state, story.notice, story.seen, story.settings, story.now)[-1]


def test_it_is_approved_once_when_its_jobs_have_saved_and_are_elsewhere() -> None:
    story = azure().runs(7, process(1, rank=0)).acts().waits(20.0).acts()
    assert story.approvals == [], "rank 0 is at it still"
    assert plan_text(story) == "approved before its time once nothing is left to wait for: slurm/7"
    story.acknowledges(7, 0).acts()
    assert (story.requeues, story.approvals) == ([(7, 1_020.0)], [])
    assert story.waits(RESTS - 0.1).acts().approvals == []
    assert story.waits(0.1).acts().acts().waits(60.0).acts().approvals == [("azure-1", 1_025.0)]
    assert plan_text(story) == "approved: so"


def test_of_a_machine_on_which_nothing_runs_it_is_approved_after_a_rest() -> None:
    assert azure().acts().waits(4.0).acts().approvals == []
    assert azure().acts().waits(5.0).acts().approvals == [("azure-1", 1_005.0)]


@pytest.mark.parametrize(
    ("approval", "why"),
    [(Approval.SHARED, "other machines would end with this one"), (Approval.BEGUN, "it has begun")],
)
def test_an_event_that_affects_others_or_has_begun_is_never_approved_and_the_reason_is_shown(
    approval: Approval, why: str
) -> None:
    story = azure(approval=approval).acts().waits(30.0).acts()
    assert (story.approvals, plan_text(story)) == ([], f"not approved: {why}")


def test_nothing_is_approved_or_shown_where_the_site_does_not_ask_or_the_source_takes_none() -> None:
    story = azure()
    story.settings = replace(APPROVING, approve=False)
    assert story.acts().waits(30.0).acts().approvals == []
    assert "approved" not in plan_text(story)
    story = azure(approval=Approval.NONE).waits(30.0).acts()
    assert (story.approvals, "approved" in plan_text(story)) == ([], False)


def test_it_waits_for_the_exclusion_and_for_the_controller() -> None:
    story = azure()
    story.unschedulable = False
    assert story.waits(30.0).acts().approvals == []
    assert plan_text(story).endswith("nothing is left to wait for: the exclusion of this node")
    story.unschedulable, story.controller = True, False
    assert story.acts().approvals == []
    story.controller = True
    assert story.acts().approvals == [("azure-1", 1_030.0)]


def test_an_approval_needs_a_response_of_the_controller_to_that_very_scan() -> None:
    story = azure().waits(30.0)
    seen = replace(story.seen, fresh=False)
    assert story.notice is not None
    asks = plan(story.state, story.notice, seen, story.settings, story.now)
    assert (asks.steps, asks.ask_controller, asks.again < story.now.boottime + 1.0) == ((), True, True)
    assert story.plan.steps == (Approve("azure-1"),)


def test_a_job_without_a_signal_and_an_acknowledgement_keeps_its_machine_until_the_end() -> None:
    deaf = process(1, catches=frozenset())
    story = azure().hosts(local(1, deaf, kind=Kind.PROCESS)).acts()
    for _ in range(60):
        assert story.waits(10.0).acts().approvals == []


def test_a_job_that_slurm_is_still_ending_here_is_waited_for() -> None:
    story = azure().runs(7, process(1)).acts().waits(10.0).ends(1)
    story.slurm[7] = replace(story.slurm[7], state="completing")
    assert story.acts().waits(10.0).acts().approvals == []
    assert plan_text(story).endswith(": slurm/7")
    del story.slurm[7]
    assert story.acts().approvals == [("azure-1", 1_020.0)]


def test_a_job_that_came_back_here_is_not_taken_for_the_one_that_has_saved() -> None:
    story = azure().runs(7, process(1, rank=0)).acts().acknowledges(7, 0).acts()
    story.waits(20.0).runs(7, process(11, catches=frozenset()), restarts=1, started=story.now.wall)
    assert story.acts().approvals == []


def test_a_job_that_cannot_be_requeued_has_only_to_be_done() -> None:
    story = azure().runs(7, process(1, rank=0), batch=False).acts().waits(20.0).acts()
    assert story.approvals == []
    assert story.acknowledges(7, 0).waits(RESTS).acts().approvals == [("azure-1", 1_025.0)]


def test_a_job_of_several_nodes_keeps_its_machine_until_all_of_its_ranks_have_saved() -> None:
    story = azure().spreads(7, process(1, rank=0), batch=False).acts().acknowledges(7, 0).waits(20.0).acts()
    assert story.approvals == []
    assert plan_text(story).endswith(": slurm/7")
    assert story.acknowledges(7, 0, all_ranks=True).waits(RESTS).acts().approvals == [("azure-1", 1_025.0)]


def test_so_does_a_job_of_several_nodes_that_leaves_until_slurm_runs_no_step_of_it_any_more() -> None:
    story = azure().spreads(7, process(1, rank=0), batch=False).acts().ends(1).waits(20.0).acts()
    assert story.approvals == []
    story.stepless.add(7)
    assert story.waits(5.0).acts().waits(RESTS).acts().approvals == [("azure-1", 1_030.0)]


def test_a_container_with_ranks_elsewhere_keeps_its_machine_until_they_have_saved_or_it_has_ended() -> None:
    for ends in (False, True):
        story = azure().hosts(local("c0ffee", process(1, rank=0), kind=Kind.CONTAINER, elsewhere=True)).acts()
        event = partial(saved, "container/c0ffee", "socket", saved=True, rank=0, boot_id=BOOT, now=story.now)
        story.took([event()])
        assert story.waits(20.0).acts().approvals == []
        if ends:
            story.ends(1)
        else:
            story.took([event(all_ranks=True)])
        assert story.acts().approvals == [("azure-1", 1_020.0)]


def test_it_is_not_worth_it_right_before_the_end_nor_when_that_is_over() -> None:
    assert azure(60.0).waits(57.0).acts().approvals == []
    assert azure(-5.0).waits(20.0).acts().approvals == []


def test_a_refused_approval_is_retried_a_few_times_and_then_reported() -> None:
    story = azure().waits(10.0)
    story.approval = Result.RETRY
    for _ in range(200):
        story.acts().waits(1.0)
    assert [at - 1_010.0 for _, at in story.approvals] == [0.0, 2.0, 6.0, 14.0, 30.0]
    assert plan_text(story) == f"not approved: so, after {TRIES_MOST} attempts"
    assert story.restarts().steps() == story.sums_up().steps() == ()


def test_a_daemon_that_was_killed_before_it_knew_what_came_of_it_tries_it_again_and_not_for_ever() -> None:
    story = azure().waits(10.0)
    for _ in range(TRIES_MOST):
        story.acts(1, dies="after sending").restarts()
        assert story.steps() == ()
        story.waits(60.0)
    assert (len(story.approvals), story.acts().steps()) == (TRIES_MOST, ())
    assert len(story.texts(EventKind.APPROVING)) == TRIES_MOST


@pytest.mark.parametrize("result", [Result.DONE, Result.ALREADY, Result.REFUSED, Result.DROPPED])
def test_what_is_settled_is_not_tried_again_whatever_becomes_of_the_daemon(result: Result) -> None:
    story = azure().waits(10.0)
    story.approval = result
    story.acts().sums_up().waits(100.0).acts()
    assert len(story.approvals) == 1


def test_an_event_that_goes_and_comes_again_was_approved_before() -> None:
    story = azure().waits(10.0).acts().announces().waits(10.0)
    story.announces(announced(600.0, source="azure", approval=Approval.ALONE, at=1_020.0)).waits(30.0).acts()
    assert (len(story.approvals), plan_text(story)) == (1, "not approved: it was approved before")


def test_an_end_that_is_called_off_is_not_approved() -> None:
    story = azure().waits(4.0).announces().waits(30.0)
    assert (story.steps(), story.approvals) == ((), [])


def test_each_answer_of_a_job_is_counted_once_and_by_the_ledger() -> None:
    story = azure().runs(7, process(1, rank=0), process(2, rank=1)).runs(8, process(3)).runs(9, process(4)).acts()
    story.acknowledges(7, 0).acknowledges(7, 0).acknowledges(7, 1)
    story.took([saved("slurm/8", "file", saved=False, rank=0, boot_id=BOOT, now=story.now)])
    story.took([
        saved("slurm/9", "exit", saved=False, process=(4, 40), boot_id=BOOT, now=story.now),
        saved("slurm/7", "exit", saved=False, process=(1, 10), boot_id=BOOT, now=story.now),
    ])  # fmt: skip
    for stage in (story, story.restarts(), story.sums_up(), story.sums_up()):
        assert stage.state.answers == {"saved": 1, "unsaved": 1, "ended": 1}
