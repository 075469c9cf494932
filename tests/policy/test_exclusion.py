"""When a node is taken out of scheduling, and when not; what brings it back, and what never does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwarden.health.event_data import write
from gpuwarden.health.model import NODE, Advice, EventKind, Health, Json, gpu
from gpuwarden.policy import orders, reasons
from gpuwarden.policy.model import Act, Flag
from gpuwarden.policy.state import KEYS_MOST
from support.policy_story import (
    BOOT,
    FAILED,
    INSTANCE,
    SETTINGS,
    Story,
    announced,
    called_off,
    kinds,
    restored,
    warning,
    xid,
)
from support.quick import first_quick
from support.schedulers import Node
from support.snapshots import finding, slot

# --- out


def test_a_failure_excludes_the_node_once_and_keeps_the_first_reason() -> None:
    story = Story().fails()
    assert story.reason == FAILED
    story.fails(xid(5), xid(3)).waits(3600)
    assert (story.reason, story.writes) == (FAILED, ["exclude"])


@pytest.mark.parametrize("finding", [warning(), replace(xid(), shadow=True)], ids=["warning", "shadow"])
def test_what_is_no_failure_takes_nothing_out(finding: object) -> None:
    story = Story()
    story.health, story.findings = Health.WARNING, (finding,)  # type: ignore[assignment]
    assert story.passes(10).writes == []


def test_unknown_takes_nothing_out_however_long() -> None:
    assert Story().unknown(passes=10_000).writes == []


def test_unknown_takes_out_where_it_is_set_so_and_only_after_its_time() -> None:
    story = Story(replace(SETTINGS, on_unknown="exclude", unknown_after=300.0)).unknown(passes=50)
    assert story.writes == []
    story.heals().unknown(passes=50)
    assert story.writes == []  # it began again
    story.unknown(passes=20)
    assert story.reason == "gpuwarden: failure unknown=nvml_not_answering"


def test_mode_observe_records_once_what_it_would_do_and_does_nothing() -> None:
    story = Story(replace(SETTINGS, enforce=False)).fails().waits(600)
    assert (story.writes, kinds(story).count(EventKind.INTENDED)) == ([], 1)
    assert story.state.would["slurm"].reason == FAILED
    story.heals(passes=200)
    assert (story.writes, kinds(story).count(EventKind.INTENDED)) == ([], 2)
    story.fails()
    assert kinds(story).count(EventKind.INTENDED) == 3


def test_what_observe_held_back_is_done_once_mode_is_enforce() -> None:
    story = Story(replace(SETTINGS, enforce=False)).fails()
    story.settings = SETTINGS
    assert story.restarts_daemon().passes().reason == FAILED


def test_an_intent_of_mode_enforce_is_given_up_in_mode_observe() -> None:
    story = Story()
    story.reachable = False
    story.fails()
    story.settings, story.reachable = replace(SETTINGS, enforce=False), True
    assert story.restarts_daemon().passes(5).writes == []


# --- never over others


@pytest.mark.parametrize("flag", list(Flag))
def test_under_another_flag_of_the_scheduler_nothing_is_written(flag: Flag) -> None:
    story = Story()
    story.cluster.nodes["n1"] = Node(flags=frozenset({flag}))
    story.fails().waits(60)
    assert (story.writes, kinds(story).count(EventKind.INTENDED)) == ([], 0)
    story.cluster.nodes["n1"] = Node()
    assert story.passes().reason == FAILED


@pytest.mark.parametrize("flag", [Flag.REBOOT, Flag.POWER])
def test_a_flag_that_waits_for_jobs_while_new_ones_start_keeps_no_failed_node_in(flag: Flag) -> None:
    story = Story()
    story.cluster.nodes["n1"] = Node(flags=frozenset({flag}), waits=True)
    assert story.fails().reason == FAILED
    assert story.heals(passes=20).writes == ["exclude"]
    story.cluster.nodes["n1"] = replace(story.cluster.nodes["n1"], flags=frozenset())
    assert story.passes(3).writes == ["exclude", "restore"]


def test_somebody_else_s_exclusion_is_untouched_before_during_and_after_a_failure() -> None:
    story = Story()
    story.drained_by_hand("replacing a fan")
    story.fails().waits(60).heals(passes=100)
    assert (story.reason, story.writes) == ("replacing a fan", [])
    assert kinds(story) == [EventKind.BOOT, EventKind.EXCLUDED_BY_OTHERS]


def test_somebody_else_s_exclusion_is_recorded_once_with_its_reason_and_once_more_after_a_start_of_the_daemon() -> None:
    story = Story().passes()
    story.drained_by_hand("replacing\n a fan " + 300 * "x")
    story.passes(10).restarts_daemon().passes(10)
    recorded = [event.data for event in story.ledger if event.kind == EventKind.EXCLUDED_BY_OTHERS]
    since = story.cluster.nodes["n1"].since
    assert recorded == 2 * [{"actuator": "slurm", "reason": ("replacing a fan " + 300 * "x")[:200], "since": since}]


def test_an_exclusion_passes_to_the_user_who_changes_its_reason() -> None:
    story = Story().fails()
    story.drained_by_hand("gpu 3 is replaced tomorrow")
    story.heals(passes=100)
    assert (story.reason, story.writes, story.state.holds) == ("gpu 3 is replaced tomorrow", ["exclude"], {})


def test_gpuwardens_reason_written_again_by_another_user_is_foreign() -> None:
    story = Story().fails()
    story.waits(60)
    story.drained_by_hand(FAILED)  # the same text, at another time
    assert story.heals(passes=100).writes == ["exclude"]


def test_an_exclusion_that_somebody_lifted_stays_lifted_for_a_while_and_comes_back_if_its_cause_does_not_go() -> None:
    story = Story().fails()
    story.undrained_by_hand()
    story.waits(200)
    assert (story.reason, story.writes) == ("", ["exclude"])
    story.waits(120)
    assert (story.reason, story.writes) == (FAILED, ["exclude", "exclude"])


@pytest.mark.parametrize("restarts", [True, False])
def test_an_exclusion_that_a_scheduler_younger_than_it_does_not_show_was_lifted_by_nobody(*, restarts: bool) -> None:
    """The ledger has when it was written, so that a daemon that was away meanwhile knows it, too."""
    story = Story().fails().waits(60)
    story.cluster.nodes["n1"] = Node(started=story.state.holds["slurm"].since)
    if restarts:
        story.restarts_daemon()
    assert story.fails().passes().reason == FAILED


def test_beside_a_scheduler_older_than_it_somebody_lifted_it_also_while_the_daemon_was_away() -> None:
    story = Story().fails().waits(60)
    story.cluster.nodes["n1"] = Node(started=story.state.holds["slurm"].since - 1.0)
    assert story.restarts_daemon().fails().waits(200).reason == ""
    assert story.waits(120).reason == FAILED


def test_of_an_exclusion_whose_time_is_not_known_the_ledger_s_own_counts() -> None:
    story = Story().fails().waits(60)
    hold = story.state.holds["slurm"]
    story.records(EventKind.HELD, data=write(replace(hold, since=0.0)))
    story.cluster.nodes["n1"] = Node(started=story.state.holds["slurm"].at.wall - 2.0)
    assert story.fails().waits(60).reason == ""


def test_an_exclusion_that_power_saving_drops_is_no_person_s_act_and_is_written_again_at_once() -> None:
    story = Story().fails()
    story.cluster.nodes["n1"] = Node(flags=frozenset({Flag.POWER}))
    story.waits(60)
    assert (story.reason, story.writes, kinds(story).count(EventKind.RESTORED)) == ("", ["exclude"], 0)
    assert story.last is not None
    assert "power" in story.last.blocked["slurm"]
    story.cluster.nodes["n1"] = Node()
    assert story.passes().reason == FAILED


@pytest.mark.parametrize("reboots", [True, False])
def test_an_exclusion_that_a_reboot_by_the_scheduler_drops_is_no_person_s_act(*, reboots: bool) -> None:
    """Slurm drops it after the reboot, as the node registers, when nothing shows the reboot any more."""
    story = Story().fails()
    drained = story.cluster.nodes["n1"]
    story.cluster.nodes["n1"] = replace(drained, flags=frozenset({Flag.REBOOT}))
    story.passes().reboots().fails()
    if not reboots:  # another party called it off: what ends the drain then is a person's act
        story.cluster.nodes["n1"] = drained
        story.passes()
    story.undrained_by_hand()
    assert story.passes(2).reason == (FAILED if reboots else "")


def test_after_the_end_of_a_foreign_exclusion_the_same_time_passes() -> None:
    story = Story()
    story.drained_by_hand("rack move")
    story.fails().undrained_by_hand()
    assert story.waits(200).writes == []
    assert story.waits(120).reason == FAILED


def test_after_one_that_ended_while_the_daemon_was_away_no_time_passes() -> None:
    story = Story()
    story.drained_by_hand("rack move")
    story.passes().undrained_by_hand()
    assert story.restarts_daemon().fails().reason == FAILED
    assert kinds(story).count(EventKind.LIFTED) == 1


def test_a_node_that_was_only_down_while_it_booted_is_out_at_once_if_it_fails() -> None:
    story = Story()
    story.cluster.nodes["n1"] = Node(reason="Node unexpectedly rebooted", flags=frozenset({Flag.DOWN}))
    story.fails().undrained_by_hand()
    assert story.passes().reason == FAILED


def test_an_exclusion_that_is_gone_after_a_reboot_is_made_again_at_once() -> None:
    story = Story().fails()
    story.undrained_by_hand()  # as a scheduler's own power saving does
    assert story.reboots().fails().reason == FAILED


def test_an_exclusion_that_outlived_a_reboot_and_is_then_lifted_was_lifted_by_somebody() -> None:
    story = Story().fails().reboots().fails().waits(60)
    story.undrained_by_hand()
    story.waits(200)
    assert (story.reason, story.writes) == ("", ["exclude"])


# --- back


def test_enough_clean_passes_and_enough_time_bring_it_back() -> None:
    story = Story().fails().heals(passes=2)
    assert story.writes == ["exclude"]
    story.heals(passes=8)
    assert story.writes == ["exclude"]  # enough passes, and only 50 s
    story.heals(passes=3)
    assert (story.reason, story.writes) == ("", ["exclude", "restore"])


def test_unknown_in_between_restarts_the_count_and_never_returns_the_node() -> None:
    story = Story().fails().waits(120)
    for _ in range(20):
        story.heals(passes=2).unknown()
    assert story.writes == ["exclude"]


def test_passes_that_observed_nothing_do_not_count() -> None:
    story = Story().fails().waits(120)
    story.health, story.findings = Health.HEALTHY, ()
    for _ in range(10):
        story.step()
    assert story.writes == ["exclude"]


@pytest.mark.parametrize("advice", first_quick(1, [Advice.INSPECT_HARDWARE, Advice.CONTACT_SUPPORT]))
def test_after_a_finding_that_needs_a_person_only_a_person_brings_it_back(advice: Advice) -> None:
    story = Story().fails().fails(xid(3), replace(finding("row_remap_failed", gpu(slot(5))), advice=advice))
    story.heals(passes=1_000).restarts_daemon().heals(passes=1_000).checkpoints().restarts_daemon().heals(passes=1_000)
    assert story.writes == ["exclude"]
    restored(story, by="al")
    assert story.passes().writes == ["exclude", "restore"]


def test_what_comes_again_and_again_within_a_day_stays_out_and_the_status_says_why_after_it_ended() -> None:
    often = replace(xid(3, Advice.INSPECT_HARDWARE, 94), evidence={"failures_within_a_day": 3})
    story = Story().fails(often).heals(passes=100).checkpoints().restarts_daemon().heals(passes=100)
    assert story.writes == ["exclude"]
    assert story.last is not None
    assert f"{often.key} occurred 3 times within a day" in story.last.blocked["slurm"]
    assert restored(story).heals().writes == ["exclude", "restore"]


def test_a_termination_that_is_called_off_does_not_bring_back_what_needs_a_person() -> None:
    story = announced(Story().fails(xid(3, Advice.INSPECT_HARDWARE)).heals())
    doomed = announced(Story()).fails(xid(3, Advice.INSPECT_HARDWARE)).heals()
    for ended_story in (story, doomed):
        assert called_off(ended_story).heals(passes=1_000).reason == reasons.termination(BOOT, INSTANCE)


def test_nor_does_one_whose_exclusion_was_not_confirmed_yet() -> None:
    story = Story()
    story.done = (True, False)  # the answer was lost
    announced(story).fails(xid(3, Advice.INSPECT_HARDWARE)).heals()
    story.reachable, story.done = False, (True, True)
    called_off(story).heals(passes=10)
    story.reachable = True
    assert story.heals(passes=1_000).reason == reasons.termination(BOOT, INSTANCE)


def test_a_termination_that_is_called_off_brings_a_failed_node_back_only_after_its_time() -> None:
    story = announced(Story().fails().heals())
    called_off(story).checkpoints().restarts_daemon().heals(passes=5)
    assert (story.writes, story.reason) == (["exclude", "exclude"], reasons.termination(BOOT, INSTANCE))
    assert story.last is not None
    assert "out for 60 s" in story.last.blocked["slurm"]
    assert story.waits(60).reason == ""


def test_the_return_of_a_failed_node_counts_also_after_a_termination_that_is_called_off() -> None:
    story = Story()
    for _ in range(6):
        called_off(announced(story.fails().heals())).heals(passes=30)
    assert story.writes == ["exclude", "exclude", "restore"] * 3 + ["exclude", "exclude"] * 3
    assert story.last is not None
    assert "3 times within a day" in story.last.blocked["slurm"]


def test_a_node_that_had_no_failure_is_back_at_once_and_as_often_as_a_termination_is_called_off() -> None:
    story = Story()
    for _ in range(6):
        assert called_off(announced(story)).heals(passes=4).reason == ""
    assert story.state.returns == ()


def test_a_termination_called_off_before_its_exclusion_was_written_takes_no_node_out_afterwards() -> None:
    story = Story()
    story.reachable = False
    announced(story).fails(xid(3, Advice.INSPECT_HARDWARE)).heals()
    called_off(story).heals(passes=10)
    story.reachable = True
    story.heals(passes=10)
    assert (story.writes, story.state.pending, story.state.person) == ([], {}, {})


@pytest.mark.parametrize("written", [True, False])
def test_a_termination_called_off_before_its_exclusion_was_confirmed_leaves_the_failures_exclusion(
    *, written: bool
) -> None:
    story = Story().fails().heals()
    story.done = (written, False)
    announced(story)
    story.reachable, story.done = False, (True, True)
    called_off(story).heals(passes=5)
    story.reachable = True
    assert story.heals(passes=3).reason != ""
    assert (list(story.state.holds), story.state.pending) == (["slurm"], {})
    assert story.waits(60).reason == ""


def test_each_finding_that_needs_a_person_is_reported_once_and_their_number_is_bounded() -> None:
    findings = [xid(number % 8, Advice.INSPECT_HARDWARE, number) for number in range(100)]
    story = Story().fails(*findings).waits(600)
    assert (kinds(story).count(EventKind.NEEDS_PERSON), len(story.state.person)) == (KEYS_MOST, KEYS_MOST)


@pytest.mark.parametrize("kind", [EventKind.ACKNOWLEDGED, EventKind.GPU_REPLACED])
def test_an_acknowledged_finding_or_a_replaced_board_was_seen_to_by_a_person(kind: EventKind) -> None:
    story = Story().fails(xid(3, Advice.INSPECT_HARDWARE)).heals(passes=100)
    assert story.writes == ["exclude"]
    story.records(kind, xid(3).key)
    assert story.heals().writes == ["exclude", "restore"]


@pytest.mark.parametrize("kind", [EventKind.GPU_REPLACED, EventKind.GPU_UNPINNED])
def test_a_board_that_is_in_another_slot_now_was_seen_to_by_nobody(kind: EventKind) -> None:
    story = Story().fails(xid(3, Advice.INSPECT_HARDWARE)).heals(passes=100)
    story.records(kind, xid(3).key, {"moved_to": "0000:99:00.0"})
    assert story.heals(passes=100).writes == ["exclude"]


OBJECTION = "gres/gpu count reported lower than configured (7 < 8)"


@pytest.mark.parametrize("remark", [OBJECTION, f"Not responding : {OBJECTION}", "Kill task failed"])
def test_what_the_scheduler_objects_bars_the_way_back_until_a_person_restores(remark: str) -> None:
    story = Story().fails()
    node = story.cluster.nodes["n1"]
    story.waits(100)
    story.cluster.nodes["n1"] = replace(node, reason=f"{FAILED} : {remark}", since=story.now.wall)
    story.heals(passes=100)
    assert story.writes == ["exclude"]
    assert story.last is not None
    assert remark in story.last.blocked["slurm"]
    assert "slurm" in story.state.holds
    restored(story)
    assert story.passes().writes == ["exclude", "restore"]


def test_what_the_scheduler_objects_is_not_written_over() -> None:
    story = Story().fails()
    story.cluster.nodes["n1"] = replace(story.cluster.nodes["n1"], reason=f"{FAILED} : {OBJECTION}")
    story.took([orders.exclude("alice", "to the bench", BOOT, story.now)])
    assert story.passes(10).reason == f"{FAILED} : {OBJECTION}"


def is_off(story: Story, remarks: str, *flags: Flag) -> None:
    """Slurm has found that the machine is off; from 23.02 on it says so in the reason, whose time moves."""
    node = story.cluster.nodes["n1"]
    moved = node.since if not remarks else story.now.wall + 60.0
    story.cluster.nodes["n1"] = replace(node, reason=FAILED + remarks, since=moved, flags=frozenset(flags))


@pytest.mark.parametrize("flags", [(), (Flag.DOWN,)], ids=["drained", "down"])
@pytest.mark.parametrize(
    "remarks",
    ["", " : Not responding", " : reboot issued : reboot timed out", " : Not responding : Node unexpectedly rebooted"],
)
def test_a_machine_that_was_off_for_its_repair_comes_back(remarks: str, flags: tuple[Flag, ...]) -> None:
    story = Story().fails()
    is_off(story, remarks, *flags)
    story.reboots().unknown(passes=3).heals(passes=20)
    assert story.writes == ["exclude", "restore"]


def test_a_reboot_that_was_ordered_and_is_not_issued_yet_takes_no_exclusion_over() -> None:
    """Slurm writes the order's text, which is the drain's, with a time of its own, and appends its remark seconds later."""
    story = Story().fails()
    is_off(story, "", Flag.REBOOT)
    node = story.cluster.nodes["n1"]
    story.cluster.nodes["n1"] = replace(node, since=story.now.wall + 60.0)
    assert "slurm" in story.passes(3).state.holds
    is_off(story, " : reboot issued", Flag.REBOOT)
    story.reboots().unknown(passes=3)
    is_off(story, " : reboot issued")
    assert story.heals(passes=20).writes == ["exclude", "restore"]


def test_nor_is_it_lost_where_the_daemon_was_killed_before_it_knew_that_it_had_drained() -> None:
    story = Story()
    story.done = (True, False)  # no answer
    story.fails()
    is_off(story, " : Not responding", Flag.DOWN, Flag.SILENT)
    story.reboots().heals(passes=5)
    story.done = (True, True)
    story.heals(passes=20)
    assert story.writes == ["exclude"]
    is_off(story, " : Not responding", Flag.DOWN)
    assert story.heals(passes=20).writes == ["exclude", "restore"]


def test_nor_is_a_restoration_that_was_wanted_when_the_machine_went_off() -> None:
    story = Story().fails()
    story.done = (False, False)
    story.heals(passes=20)
    is_off(story, "", Flag.DOWN)
    story.reboots().unknown(passes=3)
    story.done = (True, True)
    assert story.heals(passes=20).writes == ["exclude", "restore"]


def test_before_its_slurmd_answers_nothing_is_resumed() -> None:
    story = Story().fails()
    is_off(story, " : Not responding", Flag.DOWN, Flag.SILENT)
    story.reboots().heals(passes=50)
    assert story.writes == ["exclude"]
    is_off(story, " : Not responding", Flag.DOWN)
    assert story.heals().writes == ["exclude", "restore"]


def test_a_node_that_went_down_without_a_boot_stays_down_until_a_person_restores() -> None:
    story = Story().fails()
    is_off(story, " : Not responding", Flag.DOWN)
    story.heals(passes=50)
    assert story.writes == ["exclude"]
    restored(story)
    assert story.passes().writes == ["exclude", "restore"]


def test_a_drain_with_the_text_and_time_of_one_that_somebody_ended_is_not_gpuwardens() -> None:
    """Slurm's own: it keeps a reason, and writes none over it."""
    story = Story().fails()
    drained = story.cluster.nodes["n1"]
    story.undrained_by_hand()
    story.passes().heals(passes=5).checkpoints()
    for boot in (BOOT, "9e107d9d-372b-4826-881d-8f2a1c6b7e55"):
        story.boot_id = boot
        story.restarts_daemon()
        story.records(EventKind.BOOT)
        story.cluster.nodes["n1"] = drained
        story.heals(passes=100)
        restored(story)
        story.heals(passes=5)
        assert (story.writes, story.reason) == (["exclude"], FAILED)


def test_a_restoration_that_the_scheduler_forgot_is_made_again_and_counts_once() -> None:
    story = Story().fails()
    drained = story.cluster.nodes["n1"]
    story.heals(passes=20)
    assert story.writes == ["exclude", "restore"]
    story.checkpoints().restarts_daemon()
    story.cluster.nodes["n1"] = drained
    story.heals(passes=20)
    assert (story.writes, len(story.state.returns)) == (["exclude", "restore", "restore"], 1)


def test_that_drain_at_another_time_is_not_the_one_that_was_restored() -> None:
    story = Story().fails().heals(passes=20)
    story.waits(60)
    story.drained_by_hand(FAILED)
    story.heals(passes=100)
    assert story.writes == ["exclude", "restore"]
    assert story.last is not None
    assert "gpuwarden restore" in story.last.stuck["slurm"]


@pytest.mark.parametrize("more", [" ticket 4711", ", see 4711", " ticket 4711 : Not responding"])
def test_what_a_person_adds_to_our_reason_is_a_remark(more: str) -> None:
    story = Story().fails()
    story.waits(60)
    story.drained_by_hand(FAILED + more)
    story.heals(passes=50)
    assert (story.writes, "slurm" in story.state.holds) == (["exclude"], True)
    assert story.last is not None
    assert "4711" in story.last.blocked["slurm"]
    assert story.last.stuck == story.last.blocked
    restored(story)
    assert story.passes().writes == ["exclude", "restore"]


def test_an_operator_s_exclusion_that_the_ledger_does_not_know_is_nothing_to_warn_of() -> None:
    story = Story()
    story.drained_by_hand("gpuwarden: operator by=alice new fan")
    story.heals(passes=50)
    assert story.last is not None
    assert ("gpuwarden restore" in story.last.blocked["slurm"], story.last.stuck) == (True, {})


def test_the_fourth_return_in_a_day_is_for_a_person() -> None:
    story = Story()
    for _ in range(6):
        story.fails().heals(passes=30)
    assert story.writes == ["exclude", "restore"] * 3 + ["exclude"]
    story.now = replace(story.now, wall=story.now.wall + 86_400.0)
    assert story.heals().writes == ["exclude", "restore"] * 4


def test_a_failure_s_exclusion_that_nobody_remembers_is_left_alone() -> None:
    story = Story()
    story.drained_by_hand(FAILED)
    assert story.heals(passes=1_000).writes == []


def test_an_exclusion_for_unknown_health_that_only_the_ledger_remembers_is_lifted_after_clean_passes() -> None:
    story = Story()
    reason = reasons.unknown(["nvml"])
    story.drained_by_hand(reason)
    data: dict[str, Json] = {"actuator": "slurm", "why": "failure", "reason": reason, "since": story.node_state.since}
    story.records(EventKind.EXCLUDED, data=data)
    story.restarts_daemon().heals(passes=2)
    assert story.writes == []
    assert story.waits(60.0).writes == ["restore"]


def test_a_failure_that_goes_on_after_the_ledger_was_lost_is_known_again_by_its_text() -> None:
    story = Story().fails().restarts_daemon(remembered=False).fails()
    assert (story.writes, list(story.state.holds)) == (["exclude"], ["slurm"])
    assert story.heals(passes=100).writes == ["exclude", "restore"]


def test_an_operators_restore_restarts_the_count_of_returns() -> None:
    story = Story()
    for _ in range(3):
        story.fails().heals(passes=30)
    restored(story, by="bob")
    assert story.passes().fails().heals(passes=30).writes == ["exclude", "restore"] * 4


@pytest.mark.parametrize(
    ("why", "message"),
    [("passes", "3 clean passes in a row, 2 so far"), ("time", "out for 60 s"), ("day", "3 times within a day")],
)
def test_the_reason_why_a_healthy_node_is_not_back_yet_is_shown(why: str, message: str) -> None:
    story = Story()
    for _ in range(3 if why == "day" else 0):
        story.fails().heals(passes=30)
    story.fails().heals(passes={"passes": 2, "time": 5, "day": 30}[why])
    assert story.last is not None
    assert message in story.last.blocked["slurm"]


# --- a scheduler that is away


def test_an_intent_waits_for_the_scheduler_and_is_done_when_it_returns() -> None:
    story = Story()
    story.reachable = False
    story.fails().restarts_daemon().fails().checkpoints().restarts_daemon().fails()
    assert len(story.state.pending) == 1
    story.reachable = True
    assert story.passes().writes == ["exclude"]


def test_an_intent_whose_cause_went_meanwhile_is_taken_back_whether_it_was_written_or_not() -> None:
    for written in (True, False):
        story = Story()
        story.reachable = False
        story.fails()
        if written:  # and its answer was lost
            story.cluster.exclude("n1", story.state.pending["slurm"].reason)
        story.heals(passes=10)
        story.reachable = True
        story.passes(2)
        assert (story.reason, story.state.pending) == ("", {})


def test_what_may_be_written_for_a_finding_that_needs_a_person_is_not_taken_back_without_one() -> None:
    story = Story()
    story.done = (True, False)  # the answer was lost
    story.fails(xid(3, Advice.INSPECT_HARDWARE))
    story.reachable, story.done = False, (True, True)
    story.heals(passes=10)
    story.reachable = True
    story.heals(passes=100)
    held = "gpuwarden: failure gpu=3 xid=79 - have the board inspected: seating, power, cables"
    assert (story.reason, story.writes, story.state.pending) == (held, ["exclude"], {})
    assert story.last is not None
    assert story.last.blocked["slurm"].startswith("it was excluded for what needs an operator: ")
    restored(story, by="bob")
    assert story.passes().writes == ["exclude", "restore"]


def test_a_node_that_was_repaired_does_not_go_out_for_what_it_had_when_the_scheduler_was_away() -> None:
    story = Story()
    story.reachable = False
    story.fails(xid(3, Advice.INSPECT_HARDWARE)).reboots()
    story.reachable, story.health, story.findings = True, Health.UNKNOWN, ()
    story.step()  # before the first pass
    assert (story.writes, len(story.state.pending)) == ([], 1)
    story.heals(passes=10)
    assert (story.writes, story.state.pending, story.state.person) == ([], {}, {})


def test_what_was_written_and_not_written_down_comes_back_by_the_rules_if_its_cause_ended_meanwhile() -> None:
    story = Story()
    story.done = (True, False)  # the daemon was killed before it read back
    story.fails()
    story.done = (True, True)
    story.restarts_daemon().heals(passes=5)
    assert (story.writes, list(story.state.holds)) == (["exclude"], ["slurm"])
    assert story.heals(passes=12).writes == ["exclude", "restore"]


def test_what_ended_for_a_moment_and_is_seen_again_is_still_wanted() -> None:
    story = Story()
    story.reachable = False
    story.fails().heals()
    story.reachable = True
    assert story.heals().writes == []
    assert (story.fails().reason, kinds(story).count(EventKind.INTENDED)) == (FAILED, 1)


@pytest.mark.parametrize("restarts", [0, 1, 2])
@pytest.mark.parametrize("passes", [0, 1, 2, 7])
@pytest.mark.parametrize("rebooted", [False, True])
@pytest.mark.parametrize("advice", [Advice.RESET_GPU, Advice.INSPECT_HARDWARE])
def test_a_repaired_node_is_not_drained_for_its_old_fault_if_the_scheduler_comes_back_between_two_passes(
    *, restarts: int, passes: int, rebooted: bool, advice: Advice
) -> None:
    """The breaker that opens is as a scheduler that comes back: the intent is pending, and may be carried out from then on."""
    fault, story = xid(3, advice), Story()
    story.reachable = False
    story.fails(fault)
    if rebooted:
        story.reboots()
    for _ in range(restarts):
        story.restarts_daemon()
        story.records(EventKind.BOOT)
        story.fails(replace(fault, confirmed=False)).passes(passes)
        if not rebooted:
            story.fails(fault)
    story.health, story.findings, story.reachable = Health.HEALTHY, (), True
    story.step()  # it fell with a reading of another source, before the next pass
    assert story.writes == []
    assert (story.heals(passes=100).writes, story.state.pending, story.state.holds) == ([], {}, {})


def test_unknown_neither_carries_an_intent_out_nor_takes_it_back() -> None:
    story = Story()
    story.reachable = False
    story.fails().unknown(passes=100)
    story.reachable = True
    assert story.passes(10).writes == []
    assert (story.fails().reason, kinds(story).count(EventKind.INTENDED)) == (FAILED, 1)


@pytest.mark.parametrize("takes_effect", [True, False])
def test_a_node_that_fails_again_while_it_is_being_brought_back_is_out_at_once(takes_effect: bool) -> None:
    story = Story().fails().waits(100)
    story.done = (takes_effect, False)
    story.heals(passes=3)
    assert [intent.act for intent in story.state.pending.values()] == [Act.RESTORE]
    story.done = (True, True)
    story.fails(xid(5))
    assert (story.reason, list(story.state.holds), story.state.pending) == (FAILED, ["slurm"], {})


def test_a_read_from_before_a_write_does_not_end_its_exclusion() -> None:
    story = Story()
    stale = story.node_state
    story.fails()
    situation = story.situation
    story.situation = lambda: replace(situation(), node_states={"slurm": stale})  # type: ignore[method-assign]
    assert list(story.waits(60).state.holds) == ["slurm"]


def test_node_wide_failures_count_too() -> None:
    assert (
        Story().fails(finding("driver_unresponsive", NODE)).reason
        == "gpuwarden: failure driver_unresponsive - reboot it"
    )


# --- what is only remembered

REMEMBERED = replace(xid(), confirmed=False)


def test_a_failure_that_is_only_remembered_takes_nothing_out_and_the_status_shows_it() -> None:
    story = Story().fails(REMEMBERED).waits(3600)
    assert (story.writes, story.state.clean) == ([], 0)
    assert story.last is not None
    assert "not confirmed yet" in story.last.blocked["slurm"]
    assert story.fails(xid()).writes == ["exclude"]


def test_beside_one_that_was_found_it_is_as_before() -> None:
    assert Story().fails(REMEMBERED, xid(5)).writes == ["exclude"]


def test_an_intent_of_before_the_restart_waits_until_its_failure_is_confirmed() -> None:
    story = Story()
    story.reachable = False
    story.fails().restarts_daemon()
    story.reachable = True
    assert story.fails(REMEMBERED).waits(600).writes == []
    assert story.fails(xid()).writes == ["exclude"]


def test_an_intent_of_before_the_restart_is_given_up_when_its_failure_is_over() -> None:
    story = Story()
    story.reachable = False
    story.fails().restarts_daemon()
    story.reachable = True
    story.fails(REMEMBERED).heals(passes=200)
    assert (story.writes, story.state.pending) == ([], {})


def test_an_exclusion_stays_while_its_failure_is_only_remembered() -> None:
    story = Story().fails().restarts_daemon()
    story.fails(REMEMBERED).waits(7200)
    assert (story.reason, story.writes) == (FAILED, ["exclude"])


def test_where_unknown_takes_out_a_failure_that_is_not_confirmed_does_after_a_minute_at_the_least() -> None:
    story = Story(replace(SETTINGS, on_unknown="exclude", unknown_after=5.0))
    story.fails(REMEMBERED).waits(50)
    assert story.writes == []
    assert story.waits(20).reason == "gpuwarden: failure unknown=not_confirmed"


def test_an_exclusion_that_a_scheduler_shows_again_stands_for_what_fails_now() -> None:
    """The controller crashed and forgot our restoration; the fault that is found meanwhile keeps the node out by its own rules."""
    story = Story().fails().waits(100)
    before = story.cluster.nodes["n1"]
    story.heals(passes=20)
    assert story.reason == ""
    story.cluster.nodes["n1"] = before
    story.fails(xid(5, Advice.CONTACT_SUPPORT))
    assert story.state.holds["slurm"].reason == story.reason == FAILED
    story.heals(passes=200)
    assert story.reason == FAILED
    assert "what needs an operator" in story.last.blocked["slurm"]  # type: ignore[union-attr]
