"""What is done for the jobs of a machine that is about to end: each signalled once, each requeued once and not too early."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwarden.features.evacuation.policy.budget import FAILING_GPU
from gpuwarden.features.evacuation.policy.delivery import DeliveryRules, Way, mark
from gpuwarden.features.evacuation.policy.events import not_requeued, saved, signalled, signalling
from gpuwarden.features.evacuation.policy.model import JOBS_MOST, Requeued, Sent
from gpuwarden.features.evacuation.policy.plan import EvacuationSettings, never
from gpuwarden.features.evacuation.policy.preview import preview
from gpuwarden.features.evacuation.policy.steps import CheckSteps, NameNot, Requeue, SetFinalState, SignalJob
from gpuwarden.health.model import EventKind
from gpuwarden.policy.notices import id_of
from gpuwarden_collectors.receivers.facts import Kind, Role
from support.evacuations import BOOT, BOOTED, SETTINGS, Story, announced, local, process, slurm_job

# --- signalling


def test_a_job_is_signalled_at_once_and_requeued_when_its_ranks_have_saved_and_the_node_takes_no_work() -> None:
    story = Story().runs(7, process(1, rank=0), process(2, rank=1)).announces(announced(120.0)).acts()
    assert story.signals == [(1, "TERM"), (2, "TERM")]
    story.waits(4.0).acknowledges(7, 0).acts()
    story.unschedulable = True
    assert story.acts().requeues == [], "rank 1 is at it still"
    story.acknowledges(7, 1)
    story.unschedulable = False
    assert story.acts().requeues == [], "it could come back here"
    story.unschedulable = True
    assert story.acts().requeues == [(7, 1_004.0)]
    assert story.texts(EventKind.REQUEUED) == [{"job": "slurm/7", "restarts": 0, "text": ""}]


def test_nothing_is_due_before_the_departure_is_written_nor_after_it_is_over() -> None:
    story = Story().runs(7, process(1))
    story.notices = {"x": announced()}
    assert story.steps() == ()
    story.announces(announced())
    assert [type(step) for step in story.steps()] == [SignalJob]
    notice = story.notice
    story.announces()
    assert story.state.evacuations[id_of(notice)].over == story.now if notice else False
    story.notices = {"x": announced()}
    assert story.steps() == ()


def test_a_job_whose_processes_have_ended_is_waited_for_no_longer() -> None:
    story = Story(unschedulable=True).runs(7, process(1), process(2)).announces(announced()).acts()
    story.waits(2.0).ends(1).acts()
    assert story.requeues == []
    assert story.ends(2).acts().requeues == [(7, 1_002.0)]


def test_a_job_without_an_acknowledgement_is_requeued_in_time_before_the_end() -> None:
    story = Story(unschedulable=True).runs(7, process(1)).announces(announced(120.0)).acts()
    assert story.plan.again == 1_001.0, "it is checked again each second"
    story.waits(114.5).acts()
    assert (story.requeues, story.plan.again) == ([], 1_115.0)
    assert story.waits(0.5).acts().requeues == [(7, 1_115.0)]


def test_a_job_without_a_receiver_runs_on_until_its_time_is_up() -> None:
    deaf = process(1, catches=frozenset(), rank=0)
    story = Story(unschedulable=True).runs(7, deaf).announces(announced(60.0)).acts()
    assert (story.signals, story.known(7).way, story.requeues) == ([], Way.NONE, [])
    assert story.known(7).text == "no rank of it here catches SIGTERM, which would kill it"
    assert story.waits(55.0).acts().requeues == [(7, 1_055.0)]


def test_ranks_that_were_not_signalled_may_have_read_the_notice_themselves_and_acknowledge_it() -> None:
    deaf = [process(n, catches=frozenset(), rank=n) for n in (0, 1)]
    story = Story(unschedulable=True).runs(7, *deaf).announces(announced(60.0)).acts()
    assert story.acknowledges(7, 0).acts().requeues == []
    assert story.acknowledges(7, 1).acts().requeues == [(7, 1_000.0)]


def test_a_rank_that_begins_to_catch_the_signal_later_is_signalled_then_and_the_others_not_again() -> None:
    late = process(2, catches=frozenset())
    story = Story().runs(7, process(1), late).announces(announced()).acts()
    assert story.signals == [(1, "TERM")]
    story.waits(1.0).runs(7, process(1), process(2), process(3, Role.HELPER)).acts()
    assert story.signals == [(1, "TERM"), (2, "TERM")]


def test_a_job_signalled_as_a_whole_stays_so_whatever_comes_of_a_late_rank() -> None:
    story = Story().spreads(7, process(1)).announces(announced()).acts()
    assert (story.known(7).way, story.known(7).result) == (Way.JOB_WIDE, Sent.SENT)
    story.waits(1.0).spreads(7, process(1), process(2)).acts(1, dies="after sending")
    name = id_of(announced())
    story.took([signalled(name, "slurm/7", Way.LOCAL, Sent.UNSENT, text="it has ended", boot_id=BOOT, now=story.now)])
    assert (story.known(7).way, story.known(7).result, story.known(7).count) == (Way.JOB_WIDE, Sent.SENT, 1)


def test_a_job_that_starts_before_the_exclusion_took_hold_is_signalled_too() -> None:
    story = Story().runs(7, process(1)).announces(announced()).acts().waits(3.0)
    story.runs(8, process(5), started=BOOTED + 1_002.0).acts()
    assert story.signals == [(1, "TERM"), (5, "TERM")]


def test_a_job_that_has_ended_meanwhile_is_neither_requeued_nor_named() -> None:
    story = Story(unschedulable=True).runs(7, process(1)).announces(announced()).acts()
    del story.slurm[7]
    story.ends(1).waits(130.0).acts()
    assert (story.requeues, story.texts(EventKind.NOT_REQUEUED)) == ([], [])


def test_a_job_that_was_requeued_elsewhere_and_came_back_here_is_signalled_and_requeued_once_more() -> None:
    story = Story(unschedulable=True).runs(7, process(1)).announces(announced()).acts().ends(1).acts()
    assert story.requeues == [(7, 1_000.0)]
    story.waits(9.0).runs(7, process(11), restarts=1, started=BOOTED + 1_008.0).acts()
    assert story.signals == [(1, "TERM"), (11, "TERM")]
    assert (story.known(7).restarts, story.known(7).requeued) == (1, Requeued.NO)
    assert story.ends(11).acts().requeues == [(7, 1_000.0), (7, 1_009.0)]


def test_a_job_that_another_node_requeued_and_that_still_ends_here_is_left_alone() -> None:
    story = Story(unschedulable=True).runs(7, process(1)).announces(announced()).acts()
    story.runs(7, process(1), restarts=1, state="completing").waits(130.0).acts()
    assert (story.signals, story.requeues) == ([(1, "TERM")], [])


def test_a_job_that_came_back_and_whose_ranks_are_not_there_yet_is_not_taken_for_one_that_is_done() -> None:
    story = Story(unschedulable=True).runs(7, process(1, rank=0), process(2, rank=1)).announces(announced()).acts()
    story.unschedulable = False
    story.acknowledges(7, 0).acknowledges(7, 1)
    story.runs(7, process(11, catches=frozenset()), restarts=1).acts()
    story.unschedulable = True
    assert story.acts().requeues == []
    assert story.ends(11).acts().requeues == []
    assert (story.known(7).restarts, story.known(7).acknowledged.ranks) == (1, frozenset())
    assert story.waits(115.0).acts().requeues == [(7, 1_115.0)]


def test_ranks_that_a_launcher_starts_in_the_place_of_those_that_saved_are_waited_for() -> None:
    story = Story(unschedulable=True).runs(7, process(1)).announces(announced()).acts()
    story.runs(7, process(11))
    assert [type(step) for step in story.steps()] == [SignalJob]
    assert story.acts().requeues == []
    story.runs(7, process(21, catches=frozenset()))
    assert story.acts().requeues == []
    assert story.ends(21).acts().requeues == [(7, 1_000.0)]


@pytest.mark.parametrize(("step", "rank"), [("batch", None), ("1", 0)], ids=["by the script", "by srun"])
def test_what_a_script_does_after_its_ranks_have_saved_is_waited_for_and_not_signalled(
    step: str, rank: int | None
) -> None:
    """`python train.py; rsync -a "$TMPDIR/" /shared/`: rsync catches SIGTERM, and would end by it in the middle of the copy."""
    story = Story(unschedulable=True).runs(7, process(1, step="batch")).announces(announced()).acts()
    copies = process(2, step=step, rank=rank, leader=rank is not None, name="rsync", started=100_050)
    story.waits(1.0).runs(7, copies).acts()
    assert (story.signals, story.requeues) == ([(1, "TERM")], [])
    assert story.ends(2).acts().requeues == [(7, 1_001.0)]


def test_a_rank_that_is_started_in_the_place_of_one_that_saved_is_signalled_once_it_has_its_gpu() -> None:
    story = Story().runs(7, process(1, rank=0)).announces(announced()).acts().waits(1.0)
    for gpu in (False, True):
        story.runs(7, process(2, rank=0, started=100_050, gpu=gpu)).acts()
        assert story.signals == [(1, "TERM"), *([(2, "TERM")] if gpu else [])]


def test_the_acknowledgement_of_one_rank_does_not_count_for_another() -> None:
    story = Story(unschedulable=True).runs(7, process(1), process(2)).announces(announced()).acts()
    assert story.acknowledges(7, 0).ends(2).acts().requeues == [], "which of them was rank 0 is not known"
    assert story.acknowledges(7, 1).acts().requeues == [(7, 1_000.0)]


def test_the_end_of_a_process_does_not_replace_its_acknowledgement() -> None:
    story = Story().runs(7, process(1)).announces(announced()).acts().acknowledges(7, 0)
    story.took([saved("slurm/7", "exit", saved=False, process=(1, 10), boot_id=BOOT, now=story.now)])
    acknowledgement = story.known(7).acknowledged
    assert (acknowledgement.by, acknowledgement.saved, acknowledgement.step) == ("socket", True, 7)


def test_a_process_that_speaks_for_itself_needs_no_number() -> None:
    story = Story(unschedulable=True).runs(7, process(1), process(2)).announces(announced()).acts()
    for pid in (1, 2):
        assert story.acts().requeues == []
        story.took([
            saved("slurm/7", "socket", saved=True, rank=0, process=(pid, 10 * pid), boot_id=BOOT, now=story.now)
        ])  # fmt: skip
    assert story.acts().requeues == [(7, 1_000.0)]


def test_steps_beside_each_other_number_their_ranks_alike_and_each_is_waited_for() -> None:
    """`srun --exact -n 1 python train.py &`, once for each GPU: all of them are rank 0, and save at different times."""
    ranks = [process(1, rank=0), process(2, rank=0, step="1"), process(3, rank=0, step="2")]
    story = Story(unschedulable=True).runs(7, *ranks).announces(announced()).acts()
    for pid in (1, 2, 3):
        assert story.acts().requeues == []
        story.took([
            saved("slurm/7", "socket", saved=True, rank=0, process=(pid, 10 * pid), boot_id=BOOT, now=story.now)
        ])  # fmt: skip
        story.sums_up().restarts().ends(pid if pid < 3 else 0)
    assert story.acts().requeues == [(7, 1_000.0)]


def test_a_number_that_several_ranks_have_acknowledges_for_none_of_them() -> None:
    """Their files have the same name. The other way round, the number of one rank alone is enough."""
    ranks = [process(1, rank=0), process(2, rank=0, step="1"), process(3, rank=1)]
    story = Story(unschedulable=True).runs(7, *ranks).announces(announced()).acts()
    story.acknowledges(7, 0).acknowledges(7, 1)
    assert story.acts().requeues == []
    assert story.ends(1).ends(2).acts().requeues == [(7, 1_000.0)]


def test_a_rank_that_saves_beside_one_of_its_number_is_not_signalled_for_the_next_notice() -> None:
    ranks = [process(1, rank=0), process(2, rank=0, step="1")]
    story = Story().runs(7, *ranks).announces(announced()).acts()
    story.took([saved("slurm/7", "socket", saved=True, rank=0, process=(1, 10), boot_id=BOOT, now=story.now)])
    story.announces().waits(10.0).announces(announced(120.0, at=1_010.0)).acts()
    assert story.signals == [(1, "TERM"), (2, "TERM"), (1, "TERM")]


def test_the_tasks_of_an_array_are_jobs_of_their_own() -> None:
    story = Story(unschedulable=True)
    for number in (7, 8, 9):
        story.runs(number, process(number, rank=0), called=f"7_{number - 7}", node_count=1)
    story.announces(announced()).acts().acknowledges(8, 0).acts()
    assert story.signals == [(7, "TERM"), (8, "TERM"), (9, "TERM")]
    assert story.requeues == [(8, 1_000.0)]


def test_a_job_without_a_process_here_still_loses_this_node_and_is_requeued_when_its_time_is_up() -> None:
    story = Story(unschedulable=True).announces(announced(60.0))
    story.slurm[7] = slurm_job(7)
    assert story.acts().requeues == []
    assert story.waits(56.0).acts().requeues == [(7, 1_056.0)]


def test_containers_and_unmanaged_processes_are_signalled_and_never_requeued() -> None:
    story = Story(unschedulable=True).hosts(local("c0ffee", process(1, uid=0), kind=Kind.CONTAINER, declared="USR1"))
    story.hosts(local(2, process(2), kind=Kind.PROCESS)).announces(announced()).acts().ends(1).ends(2).acts()
    assert story.signals == [(1, "USR1"), (2, "TERM")]
    assert (story.requeues, story.texts(EventKind.NOT_REQUEUED)) == ([], [])


def test_without_any_job_only_the_final_node_update_remains() -> None:
    story = Story(unschedulable=True).announces(announced(60.0)).acts().waits(58.5)
    assert story.steps() == (SetFinalState("down"),)


def test_sixty_four_jobs_of_eight_ranks_are_signalled_each_once() -> None:
    story = Story()
    for number in range(64):
        story.runs(number, *(process(100 * number + n + 1) for n in range(8)))
    story.announces(announced()).acts()
    assert len(story.signals) == len(set(story.signals)) == 512
    assert story.restarts().steps() == ()


def test_ten_thousand_processes_are_signalled_in_parts_that_the_ledger_can_hold() -> None:
    story = Story()
    for number in range(10):
        story.runs(number, *(process(10_000 * number + n + 1) for n in range(1_000)), node_count=1)
    story.announces(announced()).acts()
    assert len(story.signals) == len(set(story.signals)) == 10_000
    assert all(len(str(data["processes"])) <= 2_000 for data in story.texts(EventKind.SIGNALLING))
    assert story.restarts().steps() == ()
    assert story.sums_up().steps() == ()


def test_of_more_jobs_than_are_remembered_the_rest_is_left_alone() -> None:
    story = Story(jobs={f"process/{n}": local(n, process(n), kind=Kind.PROCESS) for n in range(1, JOBS_MOST + 50)})
    story.announces(announced())
    assert len(story.steps()) == JOBS_MOST


# --- through Slurm


def test_a_job_that_could_not_be_signalled_as_a_whole_is_signalled_on_this_host() -> None:
    story = Story(wide=Sent.UNSENT).spreads(7, process(1), process(2)).announces(announced()).acts()
    assert [data["way"] for data in story.texts(EventKind.SIGNALLING) if data["processes"]] == ["local"]
    assert story.signals == [(1, "TERM"), (2, "TERM")]
    assert (story.known(7).way, story.known(7).local_only, story.known(7).result) == (Way.LOCAL, True, Sent.SENT)


@pytest.mark.parametrize("result", [Sent.WATCHED, Sent.UNKNOWN])
def test_a_job_that_another_node_signals_or_whose_result_is_unknown_is_not_signalled_again(result: Sent) -> None:
    story = Story(wide=result).spreads(7, process(1)).announces(announced()).acts()
    assert (story.signals, story.known(7).result, story.known(7).way) == ([], result, Way.JOB_WIDE)


def test_under_another_nodes_mark_the_ranks_count_as_signalled_and_are_waited_for() -> None:
    story = Story(unschedulable=True).spreads(7, process(1, rank=0), admin_comment=mark("n2", BOOTED + 999.0))
    story.announces(announced()).acts()
    assert (story.signals, story.known(7).result, story.requeues) == ([], Sent.WATCHED, [])
    assert story.acknowledges(7, 0).acts().requeues == [], "of the ranks there nothing is known"
    assert story.acknowledges(7, 0, all_ranks=True).acts().requeues == [(7, 1_000.0)]


@pytest.mark.parametrize("within", [1.5, 120.0])
def test_signalling_a_job_as_a_whole_needs_time_and_a_controller(within: float) -> None:
    story = Story(controller=within < 2.0).spreads(7, process(1)).announces(announced(within)).acts()
    assert story.known(7).way is Way.LOCAL


@pytest.mark.parametrize(("within", "seconds"), [(30.0, 1.0), (60.0, 2.0), (120.0, 4.0), (300.0, 5.0)])
def test_ranks_on_other_nodes_are_worth_seconds_for_the_controller_to_answer(within: float, seconds: float) -> None:
    story = Story(controller=False, unanswered=seconds - 0.01)
    story.hosts(local(7, process(1), elsewhere=True)).hosts(local(8, process(2))).announces(announced(within)).acts()
    assert story.signals == [(2, "TERM")], "a job that is here alone needs no controller"
    assert story.plan.waits
    assert story.plan.again - story.now.boottime < 0.5
    story.unanswered = seconds
    assert not story.plan.waits
    assert story.acts().signals == [(2, "TERM"), (1, "TERM")]
    story = Story(controller=False, unanswered=seconds - 0.01).hosts(local(7, process(1), elsewhere=True))
    story.announces(announced(within)).acts().spreads(7, process(1))
    story.controller, story.unanswered = True, None
    assert story.acts().known(7).way is Way.JOB_WIDE


def test_a_controller_that_answers_with_an_error_is_not_waited_for() -> None:
    story = Story(controller=False).hosts(local(7, process(1), elsewhere=True)).announces(announced()).acts()
    assert story.signals == [(1, "TERM")]


def test_a_job_that_comes_in_the_last_moment_is_signalled_on_this_host() -> None:
    story = Story().announces(announced(120.0)).waits(118.5).spreads(7, process(1)).acts()
    assert story.known(7).way is Way.LOCAL


def test_a_rank_that_comes_while_its_job_is_signalled_as_a_whole_is_signalled_after_that() -> None:
    story = Story().spreads(7, process(1)).announces(announced())
    story.under_way.add("slurm/7")
    (signal_step,) = story.steps()
    assert isinstance(signal_step, SignalJob)
    story.took(
        signalling(
            story.evacuation.id, signal_step.key, signal_step.delivery, signal_step.slurm, boot_id=BOOT, now=story.now
        )
    )
    story.spreads(7, process(1), process(2)).acts()
    assert (story.signals, story.known(7).result) == ([], Sent.UNKNOWN)
    story.took(
        [signalled(story.evacuation.id, signal_step.key, Way.JOB_WIDE, Sent.UNSENT, boot_id=BOOT, now=story.now)]
    )
    story.under_way.clear()
    assert story.acts().signals == [(1, "TERM"), (2, "TERM")]


# --- on several nodes


def test_a_job_of_several_nodes_is_not_requeued_on_the_acknowledgement_of_the_ranks_of_one() -> None:
    story = Story(unschedulable=True).spreads(7, process(1, rank=0), process(2, rank=1)).announces(announced()).acts()
    story.acknowledges(7, 0).acknowledges(7, 1).acts()
    assert story.waits(114.5).acts().requeues == []
    assert story.waits(0.5).acts().requeues == [(7, 1_115.0)]


def test_one_rank_that_answers_for_all_ends_the_wait_on_every_node() -> None:
    story = Story(unschedulable=True).spreads(7, process(1, rank=0), process(2, rank=1)).announces(announced()).acts()
    assert story.acknowledges(7, 1, all_ranks=True).sums_up().acts().requeues == [(7, 1_000.0)]


def test_a_rank_that_answers_for_all_does_not_answer_for_another_step_of_its_job() -> None:
    """`srun --exact … &` twice: two trainings on the same nodes, each of which knows its own ranks. The first one ends."""
    for together in (True, False):
        story = Story(unschedulable=True).spreads(7, process(1, rank=0), *[process(2, rank=0, step="1")] * together)
        story.announces(announced()).acts().spreads(7, process(1, rank=0), process(2, rank=0, step="1")).acts()
        story.acknowledges(7, 0, pid=1, all_ranks=True).acts().ends(1).restarts().sums_up().acts()
        assert story.requeues == [], "the other step saves"
        assert story.acknowledges(7, 0, pid=2, all_ranks=True).acts().requeues == [(7, 1_000.0)]


def test_in_a_job_of_one_node_a_rank_that_answers_for_all_answers_for_itself() -> None:
    """Several trainings may run there side by side, each of which knows its own ranks."""
    story = Story(unschedulable=True).runs(7, process(1, rank=0), process(2, rank=1)).announces(announced()).acts()
    assert story.acknowledges(7, 0, all_ranks=True).acts().requeues == []
    assert story.acknowledges(7, 1, all_ranks=True).acts().requeues == [(7, 1_000.0)]


def test_a_part_of_a_heterogeneous_job_has_other_nodes_though_it_has_one_itself() -> None:
    story = Story(unschedulable=True).runs(7, process(1, rank=0), called="7+0").announces(announced()).acts()
    story.stepless.add(7)
    assert story.acknowledges(7, 0).ends(1).acts().requeues == [], "what the other part does is not known"
    assert story.acknowledges(7, 0, all_ranks=True).acts().requeues == [(7, 1_000.0)]


def test_a_job_of_several_nodes_is_requeued_once_slurm_runs_no_step_of_it_any_more() -> None:
    story = Story(unschedulable=True).spreads(7, process(1, rank=0), process(2, rank=1)).announces(announced()).acts()
    story.ends(1).stepless.add(7)
    assert [step for step in story.steps() if isinstance(step, CheckSteps)] == [], "rank 1 is here still"
    story.ends(2).stepless.clear()
    assert story.restarts().steps() == (CheckSteps("slurm/7", story.slurm[7]),)
    assert story.acts().requeues == [], "the ranks on the other node are at it still"
    assert story.waits(5.0).acts().requeues == []
    story.stepless.add(7)
    assert story.waits(5.0).acts().sums_up().acts().requeues == [(7, 1_010.0)]
    assert story.texts(EventKind.SAVED)[-1]["all_ranks"] is True


def test_what_the_batch_script_runs_after_its_steps_is_no_rank_of_them_unless_it_has_a_gpu() -> None:
    for gpu in (False, True):
        story = Story(unschedulable=True).spreads(7, process(1)).announces(announced()).acts()
        story.spreads(7, process(2, step="batch", catches=frozenset(), gpu=gpu)).stepless.add(7)
        assert story.acts().requeues == ([] if gpu else [(7, 1_000.0)])


def test_slurm_is_asked_for_steps_no_more_often_than_for_jobs_and_not_where_it_does_not_answer() -> None:
    story = Story().spreads(7, process(1)).announces(announced()).acts().ends(1)
    story.fresh = False
    assert story.steps() == ()
    story.fresh, story.controller = True, False
    assert story.steps() == ()
    story.controller = True
    assert [type(step) for step in story.steps()] == [CheckSteps]


@pytest.mark.parametrize("step", ["batch", "extern", "0+1", ""])
def test_the_end_of_steps_does_not_cover_ranks_that_are_in_none(step: str) -> None:
    story = Story(unschedulable=True).spreads(7, process(1, step=step), process(2)).announces(announced()).acts()
    story.stepless.add(7)
    story.ends(1).ends(2)
    assert not any(isinstance(step, CheckSteps) for step in story.steps())
    assert story.acts().requeues == []
    assert story.waits(115.0).acts().requeues == [(7, 1_115.0)]


def test_what_all_ranks_answered_in_an_earlier_run_of_the_job_does_not_count_for_the_next() -> None:
    story = Story().spreads(7, process(1, rank=0)).announces(announced()).acts().acknowledges(7, 0, all_ranks=True)
    story.waits(9.0).spreads(7, process(11, rank=0), restarts=1, started=BOOTED + 1_008.0).acts()
    story.unschedulable = True
    assert story.acts().requeues == []


def test_where_the_notice_comes_to_both_nodes_each_waits_for_all_ranks_or_its_time() -> None:
    """The other one gets the acknowledgements of the ranks there, and neither those of the other."""
    for answers_for_all, requeued in ((False, [(7, 1_115.0)]), (True, [(7, 1_002.0)])):
        story = Story(unschedulable=True)
        story.spreads(7, process(1, rank=0), admin_comment=mark("n2", BOOTED + 999.0)).announces(announced()).acts()
        story.waits(2.0).acknowledges(7, 0, all_ranks=answers_for_all).acts().waits(113.0).acts()
        assert story.requeues == requeued


# --- requeueing


def test_a_requeued_job_stays_so_though_a_second_attempt_fails() -> None:
    story = Story(unschedulable=True).runs(7, process(1)).announces(announced()).acts().ends(1).acts()
    story.took([not_requeued("slurm/7", "no such job", permanent=True, boot_id=BOOT, now=story.now)])
    assert (story.known(7).requeued, story.known(7).named) == (Requeued.DONE, False)


@pytest.mark.parametrize(
    ("properties", "text"),
    [({"batch": False}, "it is not a batch job"), ({"requeue": False}, "it may not be requeued")],
)
def test_a_job_that_cannot_be_requeued_is_signalled_and_named_once(properties: dict[str, bool], text: str) -> None:
    story = (
        Story(unschedulable=True).runs(7, process(1), **properties).announces(announced()).acts().waits(119.0).acts()
    )
    assert story.signals == [(1, "TERM")]
    (named,) = story.texts(EventKind.NOT_REQUEUED)
    assert str(named["text"]).startswith(text)
    assert (named["permanent"], story.requeues) == (True, [])


def test_a_requeue_for_which_there_is_no_time_is_named_and_done_if_the_end_moves_away() -> None:
    story = Story(unschedulable=True).runs(7, process(1)).announces(announced(2.0)).acts()
    assert [data["named"] for data in story.texts(EventKind.NOT_REQUEUED)] == [True]
    story.announces(replace(announced(60.0))).waits(55.0).acts()
    assert story.requeues == [(7, 1_055.0)]


def test_a_requeue_that_did_not_work_is_tried_again_after_a_pause() -> None:
    story = Story(unschedulable=True, requeue_works=False).runs(7, process(1)).announces(announced()).acts().ends(1)
    story.acts()
    assert len(story.texts(EventKind.NOT_REQUEUED)) == 1
    story.requeue_works = True
    assert story.waits(1.0).acts().requeues == []
    assert story.waits(1.5).acts().requeues == [(7, 1_002.5)]


@pytest.mark.parametrize("change", [{"requeue": False}, {"slurm": False}])
def test_nothing_is_requeued_or_named_where_that_is_not_configured(change: dict[str, bool]) -> None:
    story = Story(replace(SETTINGS, **change), unschedulable=True)  # type: ignore[arg-type]
    story.runs(7, process(1)).runs(8, process(2), batch=False).announces(announced()).acts().ends(1).waits(118.0).acts()
    assert (story.requeues, story.texts(EventKind.NOT_REQUEUED)) == ([], [])


# --- the final node update


def test_the_final_node_update_comes_once_right_before_the_end_of_a_node_that_takes_no_work() -> None:
    story = Story().announces(announced(30.0)).waits(29.0)
    assert story.acts().final_node_state == []
    story.unschedulable = True
    assert story.acts().acts().final_node_state == ["down"]


@pytest.mark.parametrize(
    "notice", [announced(None), announced(600.0, kind="shutdown"), announced(9.0), announced(-5.0)]
)
def test_there_is_no_final_node_update_without_a_deadline_in_short_time_or_on_a_plain_shutdown(
    notice: object,
) -> None:
    story = Story(unschedulable=True).announces(notice).waits(700.0).acts()  # type: ignore[arg-type]
    assert story.final_node_state == []


# --- notices


def test_two_sources_of_one_termination_signal_each_rank_once() -> None:
    first, second = announced(120.0, source="operator"), announced(90.0, at=1_030.0)
    story = Story().runs(7, process(1, rank=0)).announces(first).acts().waits(30.0)
    story.announces(first, second).acts().announces(second).acts().announces(first).acts()
    assert story.signals == [(1, "TERM")]
    story.announces(first, second).acknowledges(7, 0)
    story.unschedulable = True
    assert story.acts().requeues == [(7, 1_030.0)], "its acknowledgement of one counts for both"
    assert story.announces(first).acts().requeues == [(7, 1_030.0)]


def test_one_that_takes_the_place_of_another_takes_over_what_is_known() -> None:
    first, second = announced(120.0, source="operator"), announced(90.0, at=1_001.0)
    story = Story(unschedulable=True).runs(7, process(1, rank=0), process(2, rank=1)).announces(first).acts()
    story.acknowledges(7, 0).waits(1.0).announces(second).acts().acknowledges(7, 1).acts()
    assert (story.signals, story.requeues) == ([(1, "TERM"), (2, "TERM")], [(7, 1_001.0)])


def called_off(story: Story, after: float, source: str = "aws") -> Story:
    """Signal each rank at 1,000 s without an acknowledgement, and announce the next notice `after` seconds later."""
    story.announces(announced()).acts().waits(1.0).announces().waits(after - 1.0)
    return story.announces(announced(120.0, at=1_000.0 + after, source=source)).acts()


def test_who_acknowledged_a_notice_that_was_called_off_is_signalled_for_the_next_one_and_must_save_again() -> None:
    story = Story(unschedulable=True).runs(7, process(1, rank=0)).announces(announced()).acts().acknowledges(7, 0)
    story.announces().waits(5.0).announces(announced(120.0, at=1_005.0)).acts()
    assert (story.signals, story.requeues) == ([(1, "TERM"), (1, "TERM")], [])
    assert story.waits(115.0).acts().requeues == [(7, 1_120.0)]


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("source", ["aws", "operator"])
def test_after_a_notice_that_was_called_off_the_next_one_signals_whoever_still_handles_it(
    source: str, several: bool
) -> None:
    """The job is signalled as a whole, too, past the mark of this node, and also if the same notice comes back."""
    story = Story()
    story = story.spreads(7, process(1)) if several else story.runs(7, process(1))
    called_off(story, 40.0, source)
    assert story.signals == [(1, "TERM"), (1, "TERM")]
    assert story.known(7).way == (Way.JOB_WIDE if several else Way.LOCAL)
    assert story.sums_up().waits(500.0).acts().signals == [(1, "TERM"), (1, "TERM")], "once for each"


def test_who_may_be_saving_for_a_notice_that_was_called_off_is_signalled_after_half_a_minute() -> None:
    story = called_off(Story().runs(7, process(1)), 10.0)
    assert (story.signals, story.known(7).text) == ([(1, "TERM")], "all of its ranks here were signalled before")
    assert story.waits(19.0).sums_up().acts().signals == [(1, "TERM")]
    assert story.waits(2.0).acts().signals == [(1, "TERM"), (1, "TERM")]
    assert story.known(7).text == "SIGTERM to 1 rank here"


def test_who_dropped_its_handler_with_the_first_signal_is_waited_for_and_gets_no_second_one() -> None:
    story = Story(unschedulable=True).runs(7, process(1, rank=0)).announces(announced()).acts().announces()
    story.runs(7, process(1, rank=0, catches=frozenset())).waits(40.0).announces(announced(120.0, at=1_040.0)).acts()
    assert (story.signals, story.requeues) == ([(1, "TERM")], [])
    assert story.known(7).signalled == {(1, 10)}
    assert story.acknowledges(7, 0).acts().requeues == [(7, 1_040.0)]


def test_who_answers_the_next_notice_while_it_saves_for_the_one_that_was_called_off_gets_no_second_signal() -> None:
    story = called_off(Story().runs(7, process(1, rank=0)), 10.0).acknowledges(7, 0)
    assert story.waits(60.0).acts().signals == [(1, "TERM")]


def test_a_rank_of_a_withdrawn_notice_that_has_ended_is_none_of_the_next_one_though_the_job_is() -> None:
    """A shell that runs one training after the other is the same job all along."""
    story = Story().hosts(local(412, process(1), kind=Kind.PROCESS)).announces(announced()).acts().announces()
    story.waits(60.0).ends(1).hosts(local(412, process(2), kind=Kind.PROCESS)).announces(announced(at=1_060.0)).acts()
    job_state = story.evacuation.jobs["process/412"]
    assert story.signals == [(1, "TERM"), (2, "TERM")]
    assert (job_state.signalled == {(2, 20)}, job_state.earlier == {(1, 10)}) == (True, True)
    assert story.sums_up().evacuation.jobs["process/412"] == job_state


def test_a_rank_whose_job_has_another_name_by_now_is_waited_for_and_not_signalled_again() -> None:
    """A tree is named for its topmost process: here the first rank, which started the other and was done before it."""
    story = Story(unschedulable=True).hosts(local(1, process(1), process(2), kind=Kind.PROCESS)).announces(announced())
    del story.acts().jobs["process/1"]
    story.hosts(local(2, process(2), kind=Kind.PROCESS)).sums_up().restarts().waits(2.0).acts()
    assert story.signals == [(1, "TERM"), (2, "TERM")]
    assert story.evacuation.jobs["process/2"].signalled == {(2, 20)}
    story.announces().waits(5.0).announces(announced(120.0, at=1_007.0)).sums_up().acts()
    assert story.signals == [(1, "TERM"), (2, "TERM")], "it still saves for the notice that was called off"
    story.waits(40.0).acts()
    assert story.signals == [(1, "TERM"), (2, "TERM"), (2, "TERM")]


def test_a_rank_of_a_withdrawn_notice_that_is_still_here_is_waited_for_in_the_next_one() -> None:
    story = Story(unschedulable=True).runs(7, process(1, rank=0), process(2, rank=1), node_count=1)
    story.announces(announced()).acts().announces().waits(20.0).announces(announced(at=1_020.0)).acts()
    assert story.acknowledges(7, 0).acts().requeues == []
    assert (story.ends(2).acts().requeues, len(story.signals)) == ([(7, 1_020.0)], 2)


def test_what_was_answered_to_a_notice_before_it_was_withdrawn_does_not_count_when_it_comes_back() -> None:
    """Its end moved out of the horizon, and back: the job has gone on since it saved."""
    story = Story(unschedulable=True).runs(7, process(1, rank=0), process(2, rank=1), node_count=1)
    story.announces(announced()).acts().acknowledges(7, 0).announces().waits(60.0).ends(2).sums_up()
    story.announces(announced(180.0)).sums_up().acts()
    assert story.known(7).signalled == {(1, 10)}
    assert story.known(7).acknowledged.at is None
    assert (story.requeues, len(story.signals)) == ([], 3), "it was signalled again, for it has gone on"
    assert story.acknowledges(7, 0).acts().requeues == [(7, 1_060.0)]


def test_more_ranks_than_one_event_holds_stay_signalled_from_one_notice_to_the_next() -> None:
    ranks = [process(4_000_000 + n) for n in range(400)]
    story = Story().runs(7, *ranks, node_count=1).announces(announced()).acts().announces()
    story.waits(20.0).ends(4_000_399).announces(announced(at=1_020.0)).acts()
    assert len(story.known(7).signalled) == 399
    assert (len(story.known(7).earlier), len(story.signals)) == (1, 400)


def test_a_withdrawn_notice_that_comes_back_after_ten_minutes_signals_once_more() -> None:
    story = Story().runs(7, process(1)).announces(announced()).acts().announces().waits(700.0)
    story.announces(announced(120.0, at=1_700.0)).acts()
    assert story.signals == [(1, "TERM"), (1, "TERM")]


def test_the_same_notice_never_signals_a_process_twice_however_long_it_lasts() -> None:
    story = Story(replace(SETTINGS, requeue=False)).runs(7, process(1)).announces(announced(None)).acts()
    story.waits(5_000.0).acts()
    assert story.signals == [(1, "TERM")]
    assert story.plan.again == story.now.boottime + 5.0


@pytest.mark.parametrize(("moved", "requeued"), [(60.0, 1_055.0), (300.0, 1_295.0)])
def test_an_end_that_moves_takes_what_is_due_with_it(moved: float, requeued: float) -> None:
    story = Story(unschedulable=True).runs(7, process(1)).announces(announced(120.0)).acts()
    story.announces(announced(moved)).waits(requeued - 1_000.5).acts()
    assert story.requeues == []
    assert story.waits(0.5).acts().requeues == [(7, requeued)]


def test_an_end_that_drifts_by_less_than_a_second_is_no_news() -> None:
    story = Story().announces(announced(120.0)).announces(announced(120.8))
    assert len(story.texts(EventKind.DEPARTING)) == 1


def test_an_end_in_the_past_leaves_jobs_a_moment_to_save() -> None:
    story = Story(unschedulable=True).runs(7, process(1)).announces(announced(-600.0)).acts()
    assert (story.signals, story.requeues) == ([(1, "TERM")], [])
    assert story.waits(2.5).acts().requeues == [(7, 1_002.5)]


# --- a failing GPU


def failing() -> Story:
    story = Story(replace(SETTINGS, requeue_for_gpu=True), unschedulable=True, concerned=frozenset({"slurm/7"}))
    return (
        story.runs(7, process(1, rank=0)).runs(8, process(2)).announces(announced(None, source="gpu", kind=FAILING_GPU))
    )


def test_of_a_failing_gpu_only_the_jobs_on_it_are_signalled_and_requeued() -> None:
    story = failing().acts()
    assert story.signals == [(1, "TERM")]
    story.concerned = frozenset()
    assert story.ends(1).acts().requeues == [(7, 1_000.0)], "though it holds the GPU no more"
    assert story.waits(900.0).acts().final_node_state == []


def test_a_job_whose_rank_on_the_failing_gpu_has_saved_is_waited_for_until_the_others_have() -> None:
    story = failing()
    story.runs(7, process(1, rank=0), process(3, rank=1)).acts()
    story.concerned = frozenset()
    assert story.ends(1).acts().requeues == []
    assert story.acknowledges(7, 1).acts().requeues == [(7, 1_000.0)]


def test_for_a_failing_gpu_jobs_are_requeued_only_where_the_site_asks_for_it() -> None:
    story = failing()
    story.settings = replace(story.settings, requeue_for_gpu=False)
    assert story.acts().ends(1).waits(900.0).acts().signals == [(1, "TERM")]
    assert story.requeues == []


def test_a_node_that_is_out_for_a_failing_gpu_asks_for_its_jobs_once_a_minute() -> None:
    story = failing().acts()
    assert story.waits(179.0).plan.again - story.now.boottime == 1.0
    assert story.waits(2.0).plan.again - story.now.boottime == 60.0


def test_what_was_saved_for_a_failing_gpu_does_not_count_for_the_end_of_the_machine() -> None:
    story = failing().acts().acknowledges(7, 0)
    story.settings = replace(story.settings, requeue_for_gpu=False)
    story.waits(60.0).announces(announced(120.0, at=1_060.0)).acts()
    assert (story.signals, story.requeues) == ([(1, "TERM"), (2, "TERM")], [])


# --- what people are shown


WAITS = "requeued once {} done, in {} s at the latest, and not before this node takes no work"


def test_the_plan_is_shown_line_by_line() -> None:
    story = Story().spreads(7, process(1), process(2)).runs(8, process(3, catches=frozenset()), batch=False)
    story.hosts(local(9, process(9), kind=Kind.PROCESS)).runs(10, process(10))
    assert preview(story.state, announced(120.0), story.seen, SETTINGS, story.now) == (
        "aws/aws-1, interruption: this machine ends in 120 s",
        f"slurm/7 (train): SIGTERM through Slurm to the whole job, 2 ranks of it here; {WAITS.format('its ranks on all its nodes are', 115)}",
        f"slurm/8 (train): no rank of it here catches SIGTERM, which would kill it; not requeued: {never(story.slurm[8])}",
        "process/9 (train): SIGTERM to 1 rank here",
        f"slurm/10 (train): SIGTERM to 1 rank here; {WAITS.format('it is', 115)}",
        "final node state in 118 s: down",
    )  # fmt: skip


def test_what_was_done_shows_in_it_too() -> None:
    story = (
        Story(unschedulable=True)
        .runs(7, process(1))
        .runs(8, process(2))
        .announces(announced(None))
        .acts()
        .ends(1)
        .acts()
    )
    story.runs(7, state="completing")
    assert preview(story.state, announced(None), story.seen, EvacuationSettings(slurm=True, final_node_state="down"), story.now) == (
        "aws/aws-1, interruption: this machine ends in 30 s, assumed: the notice has no deadline",
        f"slurm/8 (train): signalled: SIGTERM to 1 rank here; {WAITS.format('it is', 25)}",
        "slurm/7 (train): signalled: SIGTERM to 1 rank here",
        "no final node state: the notice has no deadline",
    )  # fmt: skip


def test_of_many_jobs_the_first_are_shown() -> None:
    jobs = {f"process/{n}": local(n, process(n), kind=Kind.PROCESS) for n in range(1, 101)}
    lines = preview(Story().state, announced(), Story(jobs=jobs).seen, EvacuationSettings(), Story().now)
    assert (len(lines), lines[-1]) == (66, "and 36 more jobs")
    assert preview(Story().state, announced(-3.0), Story().seen, EvacuationSettings(), Story().now)[1:] == (
        "there is no job here",
    )


def test_a_plan_that_is_only_shown_changes_nothing() -> None:
    story = Story().runs(7, process(1))
    preview(story.state, announced(), story.seen, SETTINGS, story.now)
    assert story.announces(announced()).steps()[0] == SignalJob(
        story.jobs["slurm/7"], story.steps()[0].delivery, story.slurm[7]  # type: ignore[union-attr]
    )  # fmt: skip


def test_the_site_s_rules_reach_the_plan() -> None:
    story = Story(replace(SETTINGS, delivery=DeliveryRules(default="USR1"))).runs(7, process(1)).announces(announced())
    assert story.acts().signals == [(1, "USR1")]


def test_steps_come_in_the_order_in_which_they_matter() -> None:
    story = Story(unschedulable=True).runs(7, process(1)).runs(8, process(2), batch=False)
    story.announces(announced(30.0)).acts(2).waits(29.0).runs(9, process(9), node_count=1)
    assert [type(step) for step in story.steps()] == [SignalJob, Requeue, NameNot, SetFinalState]
