"""What a person orders goes before what is found, and a machine that ends stays out until another takes its place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwarden.health.model import EventKind, link
from gpuwarden.policy import orders, reasons
from gpuwarden.policy.model import Flag
from support.policy_story import (
    BOOT,
    FAILED,
    INSTANCE,
    OTHER_BOOT,
    OTHER_INSTANCE,
    SETTINGS,
    Story,
    announced,
    restored,
    xid,
)
from support.schedulers import Node
from support.snapshots import finding, slot

# --- operators


@pytest.mark.parametrize("enforce", [True, False], ids=["enforce", "observe"])
def test_a_person_s_exclusion_is_done_in_both_modes_and_ended_by_a_person_only(enforce: bool) -> None:
    story = Story(replace(SETTINGS, enforce=enforce))
    story.took([orders.exclude("alice", "replacing a fan", BOOT, story.now)])
    story.heals(passes=1_000).reboots().heals(passes=1_000)
    assert (story.reason, story.writes) == ("gpuwarden: operator by=alice replacing a fan", ["exclude"])
    restored(story)
    assert story.heals(passes=10).writes == ["exclude", "restore"]


def test_an_operators_exclusion_replaces_gpuwardens_and_outlives_its_cause() -> None:
    story = Story().fails()
    story.took([orders.exclude("alice", "to the bench", BOOT, story.now)])
    story.heals(passes=100)
    assert (story.reason, story.writes) == ("gpuwarden: operator by=alice to the bench", ["exclude", "exclude"])


def test_a_person_s_exclusion_is_not_made_over_somebody_else_s_and_does_not_lie_in_wait() -> None:
    story = Story()
    story.drained_by_hand("rack move")
    story.took([orders.exclude("alice", "to the bench", BOOT, story.now)])
    story.passes()
    story.undrained_by_hand()
    assert (story.passes(10).writes, story.state.order) == ([], None)


def test_power_saving_ends_no_operators_exclusion_and_it_is_written_once_the_node_has_booted() -> None:
    story = Story()
    story.took([orders.exclude("alice", "to the bench", BOOT, story.now)])
    story.passes()
    booting = Node(flags=frozenset({Flag.POWER}))
    story.cluster.nodes["n1"] = booting
    story.passes(10).reboots()
    story.cluster.nodes["n1"] = booting
    story.heals(passes=10)
    assert (story.reason, story.writes) == ("", ["exclude"])
    story.cluster.nodes["n1"] = Node()
    assert story.passes().reason == "gpuwarden: operator by=alice to the bench"


def test_resuming_the_node_at_the_scheduler_ends_an_operators_exclusion_too() -> None:
    story = Story()
    story.took([orders.exclude("alice", "to the bench", BOOT, story.now)])
    story.passes()
    story.undrained_by_hand()
    assert (story.waits(3600).writes, story.state.order) == (["exclude"], None)


def test_a_restored_node_is_not_excluded_again_for_what_was_known_but_for_what_is_new() -> None:
    story = Story().fails()
    restored(story, force=True)
    assert story.waits(3600).writes == ["exclude", "restore"]
    story.checkpoints().restarts_daemon().waits(60)
    assert story.writes == ["exclude", "restore"]
    story.fails(xid(3), xid(5))
    assert story.reason == "gpuwarden: failure gpu=5 xid=79 - reset the GPU when it is empty"


def test_a_restored_node_stays_in_however_much_was_found_and_found_is_still() -> None:
    links = [
        finding("nvlink_down", link(slot(number), link_number)) for number in range(8) for link_number in range(18)
    ]
    story = Story().fails(*links)
    restored(story, force=True)
    story.waits(60).checkpoints().restarts_daemon().waits(60)
    assert (story.writes, len(story.state.overridden)) == (["exclude", "restore"], 144)


def test_what_a_person_restored_in_spite_of_excludes_again_once_it_was_over() -> None:
    story = Story().fails()
    restored(story, force=True)
    story.heals(passes=2)
    story.records(EventKind.CLEARED, xid().key)
    assert story.fails().reason == FAILED


def test_what_was_found_while_a_person_s_restore_waits_for_the_scheduler_goes_before_it() -> None:
    story = Story().fails()
    story.reachable = False
    restored(story, force=True)
    story.fails(xid(3), xid(5))
    story.reachable = True
    story.passes(2)
    assert (story.reason, story.writes, list(story.state.holds)) == (FAILED, ["exclude"], ["slurm"])
    assert story.heals(passes=30).reason == ""


def test_a_person_s_exclusion_goes_before_a_restore_of_before_that_waits_for_the_scheduler() -> None:
    story = Story().fails()
    story.reachable = False
    restored(story, force=True)
    story.passes()
    story.took([orders.exclude("bob", "no, to the bench", BOOT, story.now)])
    story.passes()
    story.reachable = True
    assert story.passes(3).writes == ["exclude", "exclude"]
    assert story.reason == "gpuwarden: operator by=bob no, to the bench"


def test_a_restored_node_that_is_still_unknown_has_the_whole_time_again() -> None:
    story = Story(replace(SETTINGS, on_unknown="exclude", unknown_after=300.0)).unknown(passes=70)
    restored(story, force=True)
    assert story.unknown(passes=50).writes == ["exclude", "restore"]
    assert story.unknown(passes=20).writes == ["exclude", "restore", "exclude"]


def test_a_restore_lifts_a_failure_s_exclusion_that_nobody_remembers() -> None:
    story = Story()
    story.drained_by_hand(FAILED)
    restored(story, force=True)
    assert story.passes().writes == ["restore"]


def test_an_exclusion_needs_a_reason() -> None:
    with pytest.raises(ValueError, match="reason"):
        orders.exclude("alice", " \n", BOOT, Story().now)


# --- the end of this machine


def test_a_notice_takes_the_node_out_and_names_boot_and_instance() -> None:
    assert announced(Story()).reason == f"gpuwarden: termination boot={BOOT[:8]} instance={INSTANCE}"


def test_a_notice_that_is_called_off_brings_it_back_after_clean_passes() -> None:
    story = announced(Story())
    story.waits(600)
    assert story.writes == ["exclude"]
    story.took([orders.call_off(story.state, "root", BOOT, story.now)])
    assert story.passes(3).writes == ["exclude", "restore"]


def test_a_notice_that_is_called_off_before_its_exclusion_was_written_leaves_no_node_out_for_good() -> None:
    story = Story().unknown()
    story.reachable = False
    announced(story)
    story.took([orders.call_off(story.state, "root", BOOT, story.now)])
    story.reachable = True
    story.unknown(passes=3).heals(passes=5)
    assert (story.reason, story.state.holds, story.state.pending) == ("", {}, {})


@pytest.mark.parametrize("takes_effect", [True, False])
def test_a_node_that_fails_while_its_termination_is_lifted_is_out_for_the_failure(*, takes_effect: bool) -> None:
    story = announced(Story())
    story.took([orders.call_off(story.state, "root", BOOT, story.now)])
    story.done = (takes_effect, False)
    story.heals(passes=3)
    story.done = (True, True)
    story.fails().passes(2)
    assert story.reason == FAILED
    assert story.waits(120).heals(passes=5).reason == ""


def test_a_doomed_node_that_fails_besides_keeps_its_termination_and_a_failed_one_gets_it() -> None:
    assert announced(Story()).fails().reason == reasons.termination(BOOT, INSTANCE)
    story = announced(Story().fails())
    assert story.reason == reasons.termination(BOOT, INSTANCE)


def test_the_same_machine_rebooted_stays_out_until_an_operator_lifts_it() -> None:
    story = announced(Story()).reboots().heals(passes=1_000)
    assert (story.writes, story.state.notice) == (["exclude"], None)
    story.took([orders.call_off(story.state, "root", OTHER_BOOT, story.now)])
    assert story.passes(3).writes == ["exclude", "restore"]


@pytest.mark.parametrize("flags", [frozenset(), frozenset({Flag.DOWN})], ids=["drained", "down"])
@pytest.mark.parametrize("remarks", ["", " : Not responding", " : Not responding : Node unexpectedly rebooted"])
def test_the_machine_that_replaces_it_comes_in_after_its_first_clean_pass_with_an_empty_ledger(
    flags: frozenset[Flag], remarks: str
) -> None:
    """Slurm 23.02 and newer remark beside the reason that the machine went, and that another one came."""
    story = Story()
    story.drained_by_hand(reasons.termination(OTHER_BOOT, OTHER_INSTANCE) + remarks, flags=flags)
    story.unknown(passes=3).fails(replace(xid(), shadow=True))
    assert story.writes == []
    story.heals()
    assert story.writes == ["restore"]


@pytest.mark.parametrize(
    ("boot", "instance"),
    [(BOOT, OTHER_INSTANCE), (OTHER_BOOT, INSTANCE), ("", OTHER_INSTANCE), (OTHER_BOOT, "")],
    ids=["this boot", "this instance", "boot unknown", "instance unknown"],
)
def test_a_termination_that_may_be_this_machine_s_stays(boot: str, instance: str) -> None:
    story = Story()
    story.drained_by_hand(reasons.termination(boot, instance))
    assert story.heals(passes=100).writes == []


def test_another_remark_of_the_scheduler_keeps_the_machine_that_replaces_it_out() -> None:
    story = Story()
    remarks = " : Not responding : gres/gpu count reported lower than configured (7 < 8)"
    story.drained_by_hand(reasons.termination(OTHER_BOOT, OTHER_INSTANCE) + remarks)
    assert story.heals(passes=100).writes == []


def test_nothing_is_restored_before_it_is_known_what_the_ledger_holds() -> None:
    story = Story()
    story.drained_by_hand(reasons.termination(OTHER_BOOT, OTHER_INSTANCE))
    situation = story.situation
    story.situation = lambda: replace(situation(), remembered=False)  # type: ignore[method-assign]
    assert story.heals(passes=10).writes == []
