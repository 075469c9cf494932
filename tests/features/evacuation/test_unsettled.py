"""A daemon that is killed while it signals a job: what the next one finds out, and what it does then."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.features.evacuation.policy.delivery import MARK_STANDS, Way, mark
from gpuwarden.features.evacuation.policy.events import saved, settled, signalled, signalling
from gpuwarden.features.evacuation.policy.model import SIGNALLED_WITHIN, Sent
from gpuwarden.features.evacuation.policy.steps import SignalJob
from gpuwarden.features.evacuation.policy.unsettled import has_unused_mark, repeatable
from gpuwarden.health.model import EventKind
from gpuwarden_collectors.receivers.facts import Kind
from gpuwarden_collectors.slurm.departing_facts import CommandOutcome
from support.evacuations import BOOT, BOOTED, SETTINGS, Dies, Story, announced, local, process

ONE = frozenset({(1, 10)})
"""Rank 1, as it is remembered."""
AGAIN = replace(SETTINGS, signal_again=True)
DECIDABLE: tuple[Dies, ...] = ("before marking", "behind the mark")


def killed_before_its_mark(story: Story) -> Story:
    """Kill the daemon before its mark, as versions did that wrote SIGNALLING before they marked the job."""
    (signal_step,) = [step for step in story.steps() if isinstance(step, SignalJob)]
    event = signalling(
        story.evacuation.id, signal_step.key, signal_step.delivery, signal_step.slurm, boot_id=BOOT, now=story.now
    )
    story.took(event)
    return story.restarts()


def comments(story: Story, admin_comment: str | None) -> Story:
    story.slurm[7] = replace(story.slurm[7], admin_comment=admin_comment)
    return story


# --- through Slurm


@pytest.mark.parametrize("dies", DECIDABLE)
def test_a_job_whose_daemon_was_killed_before_it_was_written_down_is_signalled_as_a_whole(dies: Dies) -> None:
    story = Story().spreads(7, process(1), process(2)).announces(announced(30.0)).acts(1, dies=dies).restarts()
    assert story.sent == []
    story.waits(8.0).acts()
    assert story.signals == [(1, "TERM"), (2, "TERM")]
    assert (story.known(7).way, story.known(7).result, story.known(7).wide) == (Way.JOB_WIDE, Sent.SENT, True)


@given(script=st.lists(st.sampled_from(DECIDABLE), max_size=4), announced_by=st.lists(st.sampled_from(["aws", "operator"]), min_size=1, max_size=3), summed=st.booleans())  # fmt: skip
@settings(deadline=None, max_examples=100)
def test_however_often_a_daemon_is_killed_before_it_sends_each_rank_is_signalled_once(
    script: list[Dies], announced_by: list[str], summed: bool
) -> None:
    story = Story().spreads(7, process(1), process(2)).runs(8, process(3))
    for source in announced_by:
        story.announces(announced(120.0, source=source))
        for dies in script:
            story.waits(1.0).acts(1, dies=dies).restarts()
            if summed:
                story.sums_up()
    assert sorted(story.acts().signals) == [(1, "TERM"), (2, "TERM"), (3, "TERM")]


def test_an_older_ledger_without_a_mark_at_the_job_means_that_nothing_was_sent() -> None:
    story = killed_before_its_mark(Story().spreads(7, process(1)).announces(announced()))
    assert story.known(7).unsure == {(1, 10)}
    story.acts()
    assert (story.signals, story.known(7).way, story.known(7).result) == ([(1, "TERM")], Way.JOB_WIDE, Sent.SENT)


@pytest.mark.parametrize(
    ("present", "result"),
    [
        (mark("n1", BOOTED + 1_000.0), Sent.UNKNOWN),
        (mark("n2", BOOTED + 1_000.0), Sent.WATCHED),
        ("ticket 4711", Sent.UNKNOWN),
        (None, Sent.UNKNOWN),
    ],
)
def test_behind_a_mark_or_the_text_of_somebody_else_nothing_is_sent_again(present: str | None, result: Sent) -> None:
    story = killed_before_its_mark(Story().spreads(7, process(1)).announces(announced()))
    comments(story, present).acts()
    assert (story.sent, story.known(7).result, story.known(7).signalled) == ([], result, ONE)
    assert story.waits(5.0).restarts().sums_up().acts().sent == []


@pytest.mark.parametrize("at", [BOOTED + 1_000.0 - MARK_STANDS - 9.0, BOOTED - 5.0])
def test_a_mark_of_an_earlier_notice_or_run_is_none_for_this_one(at: float) -> None:
    story = killed_before_its_mark(Story().spreads(7, process(1), started=BOOTED).announces(announced()))
    assert comments(story, mark("n1", at)).acts().signals == [(1, "TERM")]


def test_a_mark_that_has_grown_old_since_it_was_set_is_still_in_force() -> None:
    story = killed_before_its_mark(Story().spreads(7, process(1)).announces(announced(9_000.0)))
    comments(story, mark("n1", BOOTED + 1_000.0)).waits(MARK_STANDS + 60.0)
    assert (story.acts().sent, story.known(7).result) == ([], Sent.UNKNOWN)


def test_a_notice_that_comes_long_after_finds_the_mark_of_the_one_for_which_it_was_to_be_sent() -> None:
    story = killed_before_its_mark(Story().spreads(7, process(1)).announces(announced(9_000.0)))
    first, story.controller = next(iter(story.notices.values())), False
    story.waits(SIGNALLED_WITHIN - 1.0).announces(
        first, announced(600.0, source="operator", at=story.now.boottime)
    ).acts()
    story.waits(60.0).controller = True
    assert comments(story, mark("n1", BOOTED + 1_000.0)).acts().sent == []
    assert {evacuation.jobs["slurm/7"].result for evacuation in story.state.evacuations.values()} == {Sent.UNKNOWN}


def test_while_the_controller_is_away_nothing_is_found_out() -> None:
    story = killed_before_its_mark(Story().spreads(7, process(1)).announces(announced()))
    story.controller = False
    assert (story.acts().sent, story.known(7).unsure) == ([], ONE)
    story.controller = True
    assert story.waits(3.0).acts().signals == [(1, "TERM")]


def test_a_job_that_restarted_meanwhile_is_another_run() -> None:
    story = killed_before_its_mark(Story().spreads(7, process(1)).announces(announced()))
    story.spreads(7, process(11), restarts=1)
    assert story.acts().signals == [(11, "TERM")]


def test_what_this_daemon_is_sending_is_not_found_out_meanwhile() -> None:
    story = killed_before_its_mark(Story().spreads(7, process(1)).announces(announced()))
    story.under_way.add("slurm/7")
    assert (story.acts().sent, story.known(7).unsure) == ([], ONE)


@pytest.mark.parametrize("step", ["0", "batch"])
def test_a_signal_whose_command_succeeded_behind_a_killed_daemon_was_sent(step: str) -> None:
    story = Story().spreads(7, process(1, step=step)).announces(announced()).acts(1, dies="before sending").restarts()
    story.records["slurm/7"] = CommandOutcome.RUNNING
    assert (story.acts().sent, story.known(7).unsure, story.known(7).result) == ([], ONE, Sent.UNKNOWN)
    story.records["slurm/7"] = CommandOutcome.SUCCEEDED
    assert (story.acts().sent, story.known(7).unsure, story.known(7).undecided) == ([], frozenset(), frozenset())
    assert (story.known(7).result, story.known(7).count) == (Sent.SENT, 1)


@pytest.mark.parametrize(("step", "way"), [("0", Way.JOB_WIDE), ("batch", Way.BATCH)])
def test_a_signal_whose_command_was_never_started_is_sent_in_spite_of_the_mark(step: str, way: Way) -> None:
    story = Story().spreads(7, process(1, step=step)).announces(announced()).acts(1, dies="before sending").restarts()
    story.records["slurm/7"] = CommandOutcome.NOT_STARTED
    story.acts()
    assert (story.signals, story.known(7).way, story.known(7).result) == ([(1, "TERM")], way, Sent.SENT)


def test_a_batch_script_has_no_mark_and_is_not_signalled_again() -> None:
    script = process(1, step="batch")
    story = Story().spreads(7, script).announces(announced()).acts(1, dies="before sending").restarts().acts()
    assert (story.sent, story.known(7).way, story.known(7).result) == ([], Way.BATCH, Sent.UNKNOWN)
    assert "scancel --signal=TERM --batch 7" in story.known(7).text


def test_who_lost_the_memory_of_his_mark_signals_nobody() -> None:
    story = Story().spreads(7, process(1), admin_comment=mark("n1", BOOTED + 1_000.0)).announces(announced()).acts()
    assert (story.sent, story.known(7).way) == ([], Way.WATCH)


def test_an_unused_mark_is_of_one_run_and_is_used_up_by_the_signal() -> None:
    story = Story().spreads(7, process(1)).announces(announced()).acts(1, dies="behind the mark").restarts()
    assert [has_unused_mark(story.state, "slurm/7", restarts) for restarts in (0, 1, None)] == [True, False, True]
    assert not has_unused_mark(story.acts().state, "slurm/7", 0)


# --- a notice that is withdrawn, or another one


@pytest.mark.parametrize("source", ["aws", "operator"])
def test_who_was_not_sent_the_signal_of_a_withdrawn_notice_gets_that_of_the_next_one(source: str) -> None:
    story = killed_before_its_mark(Story().spreads(7, process(1)).announces(announced()))
    story.waits(5.0).announces().waits(5.0)
    story.announces(announced(source=source, at=1_000.0 if source == "aws" else story.now.boottime))
    assert story.acts().signals == [(1, "TERM")]


@pytest.mark.parametrize("way", [Way.LOCAL, Way.JOB_WIDE])
def test_who_was_surely_sent_nothing_since_the_end_was_called_off_is_signalled_once_it_comes_back(way: Way) -> None:
    story = Story().announces(announced())
    story.spreads(7, process(1)) if way is Way.JOB_WIDE else story.runs(7, process(1))
    story.acts(1, dies="before sending")
    name = story.evacuation.id
    story.took(settled(name, "slurm/7", way, Sent.UNSENT, [(1, 10)], text="", due=True, boot_id=BOOT, now=story.now))
    assert story.announces().waits(3.0).announces(announced()).acts().signals == [(1, "TERM")]
    assert story.known(7).way is way


def test_ranks_of_steps_that_the_signalling_node_does_not_have_are_signalled_on_this_host() -> None:
    """Two nodes wanted to signal the job at once; the mark of the other one is in force."""
    story = Story().spreads(7, process(1), process(2, step="1")).announces(announced()).acts(1, dies="before sending")
    comments(story, mark("n2", story.now.wall))
    name, way = story.evacuation.id, Way.JOB_WIDE
    story.took(settled(name, "slurm/7", way, Sent.UNSENT, [(2, 20)], text="", boot_id=BOOT, now=story.now))
    story.took([signalled(name, "slurm/7", way, Sent.WATCHED, boot_id=BOOT, now=story.now)])
    assert (story.restarts().known(7).signalled, story.known(7).result) == (ONE, Sent.WATCHED)
    assert story.acts().signals == [(2, "TERM")]


# --- on this host


def test_ranks_of_this_host_over_which_a_daemon_was_killed_are_left_to_the_operator() -> None:
    ranks = [process(n, rank=n) for n in range(1, 13)]
    story = Story().runs(7, *ranks).announces(announced()).acts(1, dies="before sending").restarts().acts()
    assert (story.sent, story.known(7).result) == ([], Sent.UNKNOWN)
    text = story.known(7).text
    assert "12 ranks here" in text
    assert "kill -TERM 1 2 3 4 5 6 7 8 …" in text
    assert story.texts(EventKind.SIGNALLED)[-1]["result"] == "unknown"


def test_of_a_job_on_this_host_only_ranks_that_were_surely_not_sent_their_signal_get_it_again() -> None:
    story = Story(settings=AGAIN).runs(7, process(1), process(2)).announces(announced()).acts()
    name = story.evacuation.id
    not_sent = settled(
        name, "slurm/7", Way.LOCAL, Sent.UNSENT, [(2, 20)], text="traced", due=True, boot_id=BOOT, now=story.now
    )
    story.took(not_sent)
    assert (story.restarts().known(7).signalled, story.known(7).result) == (ONE, Sent.SENT)
    assert story.acts().signals == [(1, "TERM"), (2, "TERM"), (2, "TERM")]


def test_a_rank_that_was_surely_not_sent_its_signal_is_not_undecided_whatever_came_of_the_others() -> None:
    story = Story(settings=AGAIN).runs(7, process(1), process(2)).announces(announced()).acts(1, dies="before sending")
    name, way = story.evacuation.id, Way.LOCAL
    story.took([signalled(name, "slurm/7", way, Sent.UNKNOWN, boot_id=BOOT, now=story.now)])
    story.took(settled(name, "slurm/7", way, Sent.UNSENT, [(2, 20)], text="", due=True, boot_id=BOOT, now=story.now))
    assert story.known(7).undecided == ONE
    assert sorted(story.acts().signals) == [(1, "TERM"), (2, "TERM")]


def test_a_container_too() -> None:
    job = local("c0ffee", process(5), kind=Kind.CONTAINER)
    story = Story().hosts(job).announces(announced()).acts(1, dies="before sending").restarts().acts()
    job_state = story.evacuation.jobs["container/c0ffee"]
    assert (story.sent, job_state.result, job_state.undecided) == ([], Sent.UNKNOWN, frozenset({(5, 50)}))


def test_a_rank_that_comes_later_is_signalled_whatever_came_of_those_before() -> None:
    story = Story().runs(7, process(1)).announces(announced()).acts(1, dies="before sending").restarts().acts()
    assert story.runs(7, process(1), process(2)).acts().signals == [(2, "TERM")]


# --- once more, where the site asks for it


@pytest.mark.parametrize("several", [True, False])
def test_where_the_site_asks_for_it_ranks_here_get_it_once_more_and_no_third_time(several: bool) -> None:
    """Ranks on other nodes may have acknowledged to their own."""
    story = Story(settings=AGAIN)
    story.spreads(7, process(1), process(2)) if several else story.runs(7, process(1), process(2))
    story.announces(announced()).acts(1, dies="after sending").restarts()
    assert len(story.sent) == 2
    story.acts()
    assert story.signals[2:] == [(1, "TERM"), (2, "TERM")]
    assert [data["way"] for data in story.texts(EventKind.SIGNALLING)][-1] == "local"
    assert (story.known(7).result, story.known(7).undecided) == (Sent.SENT, frozenset())
    assert len(story.restarts().sums_up().waits(60.0).acts().sent) == 4


def test_a_daemon_killed_over_the_second_signal_sends_no_third_one() -> None:
    story = Story(settings=AGAIN).runs(7, process(1)).announces(announced()).acts(1, dies="after sending").restarts()
    story.acts(1, dies="after sending").restarts().acts()
    assert story.signals == [(1, "TERM"), (1, "TERM")]


def test_a_rank_that_has_acknowledged_gets_no_second_signal() -> None:
    story = Story(settings=AGAIN).runs(7, process(1, rank=0), process(2, rank=1)).announces(announced())
    story.acts(1, dies="after sending").acknowledges(7, 0).restarts().acts()
    assert story.signals == [(1, "TERM"), (2, "TERM"), (2, "TERM")]


@pytest.mark.parametrize("acknowledged_as", ["its own number", "no rank known", "all ranks"])
def test_what_may_be_an_acknowledgement_of_a_rank_is_taken_for_one(acknowledged_as: str) -> None:
    rank = None if acknowledged_as == "no rank known" else 0
    story = Story(settings=AGAIN).runs(7, process(1, rank=rank)).announces(announced())
    story.acts(1, dies="after sending")
    if acknowledged_as == "its own number":
        story.took([saved("slurm/7", "socket", saved=True, process=(1, 10), boot_id=BOOT, now=story.now)])
    else:
        story.acknowledges(7, 0, all_ranks=acknowledged_as == "all ranks")
    assert len(story.restarts().acts().sent) == 1


def test_a_rank_that_acknowledged_before_the_notice_was_withdrawn_gets_no_second_signal() -> None:
    story = Story(settings=AGAIN).runs(7, process(1, rank=0)).announces(announced()).acts(1, dies="after sending")
    story.restarts().settles().acknowledges(7, 0).announces().waits(3.0).announces(announced())
    assert len(story.acts().sent) == 1


def test_without_that_key_nobody_gets_a_second_one() -> None:
    story = Story().runs(7, process(1)).announces(announced()).acts(1, dies="after sending").restarts().acts()
    job = story.jobs["slurm/7"]
    assert repeatable(story.state, "slurm/7", job, 0) == {(1, 10)}
    assert len(story.waits(SIGNALLED_WITHIN / 2).acts().sent) == 1


# --- ledgers


def test_what_is_not_known_is_kept_in_a_checkpoint() -> None:
    marking = Story().spreads(7, process(1)).announces(announced()).acts(1, dies="behind the mark")
    unsure = killed_before_its_mark(Story().spreads(7, process(1)).announces(announced()))
    here = Story().runs(7, process(1)).announces(announced()).acts(1, dies="before sending")
    undecided = Story().runs(7, process(1)).announces(announced()).acts(1, dies="before sending").settles()
    for story, name in ((marking, "marking"), (unsure, "unsure"), (here, "unsure_here"), (undecided, "undecided")):
        before = story.known(7)
        assert getattr(before, name)
        assert story.sums_up().known(7) == before
