"""`gpuwarden restore` never gives work to a node with an active failure, unless a person forces it; and what is forced is shown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwarden.health.model import EventKind, Finding, Key
from gpuwarden.policy import orders
from gpuwarden.policy.model import Act, Intent, Why
from gpuwarden.policy.situation import overridden
from support.policy_story import BOOT, FAILED, SETTINGS, S, Story, announced, called_off, kinds, restored, xid
from support.schedulers import Node

FAN = "gpuwarden: operator by=alice replacing a fan"
REMEMBERED = replace(xid(), confirmed=False)


class Watched(Story):
    """`gaps`: how often the scheduler would have started jobs on a node with a failure that nobody overrode, after it was out once."""

    gaps = 0
    was_out = False

    def carry_out(self, intent: Intent) -> None:
        super().carry_out(intent)
        self._look()

    def step(self) -> None:
        super().step()
        self._look()

    def _look(self) -> None:
        self.was_out = self.was_out or bool(self.reason)
        counts = [finding for finding in self.findings if finding.key not in self.state.overridden]
        self.gaps += self.was_out and bool(counts) and not self.reason


def excluded(story: S, by: str = "alice", text: str = "replacing a fan") -> S:
    story.took([orders.exclude(by, text, story.boot_id, story.now)])
    story.step()
    return story


# --- the failure keeps its own exclusion


def test_a_restore_after_an_exclude_over_a_failure_brings_the_failure_s_reason_back_without_a_gap() -> None:
    story = excluded(Watched().fails())
    assert story.reason == FAN
    restored(story).passes(20)
    assert (story.reason, story.writes, story.gaps) == (FAILED, ["exclude"] * 3, 0)
    assert story.state.order is None
    assert story.waits(60).heals(passes=5).reason == "", "the rules for a failure hold from then on"


def test_so_does_one_where_the_failure_came_after_the_operator_s_exclusion() -> None:
    story = restored(excluded(Watched()).fails()).passes()
    assert (story.reason, story.writes, story.gaps) == (FAILED, ["exclude"] * 2, 0)


def test_a_restore_of_a_node_that_is_out_for_an_active_failure_alone_is_refused_and_changes_nothing() -> None:
    story = Watched().fails()
    with pytest.raises(orders.FailuresStand) as refused:
        restored(story)
    assert [finding.key for finding in refused.value.findings] == [xid().key]
    assert (story.passes(10).writes, story.gaps) == (["exclude"], 0)


def test_a_failure_that_is_only_remembered_keeps_the_node_out_too_and_gives_its_reason_once_it_is_confirmed() -> None:
    story = excluded(Watched().fails()).restarts_daemon().fails(REMEMBERED)
    restored(story).passes(20)
    assert (story.reason, story.gaps) == (FAN, 0)
    with pytest.raises(orders.FailuresStand):
        restored(story)
    assert (story.fails().reason, story.gaps) == (FAILED, 0)


def test_one_that_was_only_remembered_and_has_ended_lets_the_node_back_by_the_rules_for_failures() -> None:
    story = excluded(Watched().fails()).restarts_daemon().fails(REMEMBERED)
    restored(story).passes()
    story.heals(passes=2)
    assert story.reason == FAN
    assert story.waits(60).reason == ""


@pytest.mark.parametrize("remembered", [False, True])
def test_in_mode_observe_nothing_else_would_keep_the_node_out_so_a_restore_is_refused(*, remembered: bool) -> None:
    story = excluded(Watched(replace(SETTINGS, enforce=False)).fails())
    story.findings = (REMEMBERED if remembered else xid(),)
    with pytest.raises(orders.FailuresStand):
        restored(story)
    assert (story.passes(10).reason, story.gaps) == (FAN, 0)
    assert restored(story, force=True).passes().reason == ""


def test_a_termination_that_is_over_gives_way_to_the_failure_as_well() -> None:
    story = called_off(announced(Watched().fails()))
    restored(story).passes()
    assert (story.reason, story.gaps) == (FAILED, 0)


def test_where_a_termination_is_called_off_the_exclusion_is_for_the_failure_that_goes_on() -> None:
    """Its text says so, by which the breaker of each node counts it."""
    for story in (announced(Watched().fails()), announced(Watched()).fails()):
        called_off(story).passes()
        assert (story.reason, story.gaps, story.state.holds["slurm"].why) == (FAILED, 0, Why.FAILURE)
        assert story.checkpoints().restarts_daemon().fails().waits(60).heals(passes=5).reason == ""


def test_nor_does_it_stay_for_the_termination_if_the_scheduler_is_away_meanwhile() -> None:
    story = announced(Watched().fails())
    story.reachable = False
    called_off(story).passes(3)
    story.reachable = True
    assert (story.passes(3).reason, story.gaps) == (FAILED, 0)


def test_without_a_failure_a_restore_lifts_whatever_stands() -> None:
    story = excluded(Story().fails()).heals()
    assert restored(story).heals().reason == ""


@pytest.mark.parametrize("written", [True, False])
def test_a_restore_while_the_operator_s_exclusion_is_pending_leaves_the_failure_s(*, written: bool) -> None:
    story = Watched().fails()
    story.done = (written, False)
    excluded(story)
    story.reachable, story.done = False, (True, True)
    restored(story).passes(3)
    story.reachable = True
    story.passes(3)
    assert (story.reason, story.gaps, list(story.state.holds)) == (FAILED, 0, ["slurm"])
    assert story.waits(60).heals(passes=5).reason == ""


@pytest.mark.parametrize("written", [True, False])
def test_so_does_one_on_a_node_that_nothing_had_excluded_before(*, written: bool) -> None:
    story = Watched()
    story.done = (written, False)
    excluded(story)
    story.done = (True, True)
    story.reachable = False
    story.fails()
    restored(story).passes(3)
    story.reachable = True
    assert story.passes(3).reason == FAILED
    assert story.waits(60).heals(passes=5).reason == ""


@pytest.mark.parametrize("written", [True, False])
def test_nor_does_the_text_of_an_ended_order_stay_if_the_failure_ends_while_the_scheduler_is_away(
    *, written: bool
) -> None:
    """`written`: the failure's text took effect, and its answer was lost."""
    story = excluded(Watched().fails()).waits(120)
    restored(story)
    story.done = (written, False)
    story.passes()
    story.reachable, story.done = False, (True, True)
    story.heals(passes=5).checkpoints().restarts_daemon().heals(passes=5)
    story.reachable = True
    assert (story.heals(passes=15).reason, story.state.holds, story.state.pending) == ("", {}, {})


def test_a_kill_after_the_order_changes_nothing() -> None:
    story = excluded(Watched().fails())
    restored(story).checkpoints().restarts_daemon().fails(REMEMBERED).passes(3).fails()
    assert (story.reason, story.gaps) == (FAILED, 0)


def test_a_restore_that_waits_for_the_scheduler_is_dropped_for_a_failure_found_meanwhile() -> None:
    story = excluded(Watched())
    story.reachable = False
    restored(story).passes(2)
    assert [intent.act for intent in story.state.pending.values()] == [Act.RESTORE]
    story.fails()
    story.reachable = True
    assert (story.passes(3).reason, story.gaps) == (FAILED, 0)


def test_it_waits_too_while_that_failure_is_only_remembered() -> None:
    story = excluded(Watched())
    story.reachable = False
    restored(story).passes().restarts_daemon()
    story.reachable = True
    story.fails(REMEMBERED).passes(10)
    assert (story.reason, story.gaps) == (FAN, 0)
    assert story.heals(passes=2).reason == ""


def test_a_flag_of_the_scheduler_delays_the_failure_s_reason_and_opens_nothing() -> None:
    story = excluded(Watched().fails())
    node = story.cluster.nodes["n1"]
    story.cluster.nodes["n1"] = replace(node, reason=f"{FAN} : Low RealMemory")
    restored(story).passes(10)
    assert story.gaps == 0
    story.cluster.nodes["n1"] = node
    assert (story.passes(2).reason, story.gaps) == (FAILED, 0)


def test_an_operator_s_exclusion_that_somebody_lifted_in_that_moment_is_not_written_over_by_its_name() -> None:
    story = excluded(Watched().fails())
    restored(story)
    story.cluster.nodes["n1"] = Node(reason="rack move", since=story.now.wall)
    assert story.passes(10).reason == "rack move"


# --- what is forced


def test_a_forced_restore_is_shown_with_who_ordered_it_until_the_finding_ends() -> None:
    story = restored(Story().fails(), force=True).passes()
    assert (story.reason, shown(story)) == ("", [xid().key])
    assert story.state.override is not None
    assert story.state.override.by == "bob"
    assert story.now.wall - story.state.override.at.wall < 30.0
    restored(story, by="carol").passes()
    story.checkpoints().restarts_daemon().passes()
    assert story.state.override is not None
    assert (story.state.override.by, shown(story)) == ("bob", [xid().key])
    story.heals()
    assert shown(story) == []
    story.records(EventKind.CLEARED, xid().key)
    assert story.state.override is None


def test_an_exclude_ends_the_override_so_that_the_next_restore_is_forced_anew_or_leaves_the_node_out() -> None:
    story = restored(Watched().fails(), force=True).passes()
    restored(excluded(story)).passes()
    assert (story.reason, shown(story), story.gaps) == (FAILED, [], 0)


def test_a_failure_in_shadow_needs_no_force_and_is_not_shown_as_overridden() -> None:
    story = excluded(Story().fails(replace(xid(), shadow=True)))
    restored(story).passes()
    assert (story.reason, shown(story), kinds(story).count(EventKind.ORDERED)) == ("", [], 2)


def shown(story: Story) -> list[Key]:
    findings: list[Finding] = overridden(story.state, story.situation().verdict)
    return [finding.key for finding in findings]


def test_the_ledger_of_a_forced_restore_can_be_read_again() -> None:
    story = restored(Story().fails(xid(3), xid(5)), force=True)
    ordered = [event for event in story.ledger if event.kind == EventKind.ORDERED]
    assert [(event.boot_id, event.data["by"]) for event in ordered] == [(BOOT, "bob")]


def test_an_override_ends_with_the_gpu_that_is_expected_no_longer() -> None:
    """Its findings are forgotten with it, and a GPU that comes into the slot and fails later was overridden by nobody."""
    story = restored(Watched().fails(xid(3), xid(5)), force=True).passes()
    story.findings = (xid(5),)
    story.records(EventKind.GPU_UNPINNED, Key("gpu", xid(3).key.subject))
    assert story.passes().reason == ""
    assert story.state.overridden == {xid(5).key}
    assert story.fails(xid(3), xid(5)).reason == FAILED


def test_a_node_that_went_out_for_something_else_says_that_an_overridden_failure_keeps_it_out() -> None:
    """A node with an active failure comes back by nobody's order but a new one, and says so instead of counting clean passes for ever."""
    story = announced(restored(Watched().fails(), force=True).passes())
    called_off(story).waits(400)
    assert story.reason.startswith("gpuwarden: termination")
    assert story.last is not None
    assert story.last.blocked["slurm"].startswith(f"{xid().key}: overridden, but still active")
    assert "restore --force" in story.last.blocked["slurm"]
    restored(story, force=True).passes()
    assert story.reason == ""
