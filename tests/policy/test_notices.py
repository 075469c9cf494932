"""Of all that is announced only what is certain and near takes a node out, and only its end lets it back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwarden.health.model import EventKind
from gpuwarden.policy import orders
from gpuwarden.policy.model import Notice
from gpuwarden.policy.notices import differences, imminent
from gpuwarden.policy.state import NOTICES_MOST
from gpuwarden_collectors.facts import Stamp
from support.policy_story import BOOT, OTHER_BOOT, PASS, SETTINGS, Story

HORIZON = SETTINGS.horizon


def notice(story: Story, seconds: float | None = 120.0, **more: object) -> Notice:
    end = None if seconds is None else Stamp(story.now.boottime + seconds, story.now.wall + seconds)
    made = Notice(
        source="aws", kind="interruption", id="spot:terminate", at=story.now, boot_id=story.boot_id, deadline=end
    )
    return replace(made, **more)  # type: ignore[arg-type]


def announce(story: Story, *notices: Notice, source: str = "aws") -> list[str]:
    """Announce these notices now, and return the kinds of the events that follow."""
    standing_notices = story.state.notices
    events = list(differences(standing_notices, source, notices, horizon=HORIZON, now=story.now))
    story.took(events)
    return [str(event.kind) for event in events]


FAR = HORIZON + 1_000.0


def test_only_what_is_hard_and_within_the_horizon_takes_the_node_out() -> None:
    story = Story()
    announce(story, notice(story, FAR), notice(story, id="rebalance:x", hard=False))
    assert story.passes(3).writes == []
    story.waits(2_000.0 - HORIZON)
    assert story.writes == ["exclude"]
    unknown = Story()
    announce(unknown, notice(unknown, None))
    assert unknown.passes().writes == ["exclude"]


def test_the_same_again_is_no_news_and_what_moved_is() -> None:
    story = Story()
    termination = notice(story)
    assert announce(story, termination) == [EventKind.NOTICED]
    assert announce(story, replace(termination, at=Stamp(9_999.0, 9_999.0), reason="another text")) == []
    closer = notice(story, 60.0)
    assert announce(story, closer) == [EventKind.NOTICED]
    assert story.state.notices["aws/spot:terminate"].at == termination.at
    assert announce(story) == [EventKind.NOTICE_ENDED]
    assert story.state.notices == {}


def test_what_is_withdrawn_brings_the_node_back_and_another_that_is_far_does_not_hold_it() -> None:
    story = Story()
    far = notice(story, FAR, id="maintenance:1")
    announce(story, notice(story), far)
    story.passes(3)
    announce(story, far)
    assert story.passes(5).writes == ["exclude", "restore"]
    both = Story()
    near = notice(both, 300.0, source="gcp")
    announce(both, notice(both))
    announce(both, near, source="gcp")
    both.passes(3)
    announce(both)
    assert both.passes(5).writes == ["exclude"]


def test_one_that_is_put_off_beyond_the_horizon_lets_the_node_back() -> None:
    story = Story()
    announce(story, notice(story))
    story.passes(3)
    assert announce(story, notice(story, 10 * FAR)) == [EventKind.NOTICE_ENDED, EventKind.NOTICED]
    assert story.passes(5).writes == ["exclude", "restore"]


def test_a_source_speaks_for_nobody_else() -> None:
    story = Story()
    story.took([orders.announce(120.0, "rack move", "root", BOOT, story.now)])
    assert announce(story) == []
    announce(story, notice(story))
    assert set(story.state.notices) == {"operator/", "aws/spot:terminate"}


def test_a_repeated_announcement_of_an_operator_is_not_new_and_one_that_halves_the_time_is_sooner() -> None:
    story = Story()
    assert orders.is_sooner(story.state, 7_200.0, story.now)
    story.took([orders.announce(120.0, "rack move", "root", BOOT, story.now)])
    later = replace(story.now, boottime=story.now.boottime + 20.0)
    assert orders.is_announced(story.state, 100.5, "rack move", "root", later)
    for within, text, by in ((120.0, "rack move", "root"), (100.0, "flood", "root"), (100.0, "rack move", "ops")):
        assert not orders.is_announced(story.state, within, text, by, later)
    assert [orders.is_sooner(story.state, within, later) for within in (50.0, 51.0, 100.0, 9_000.0)] == [
        True, False, False, False,
    ]  # fmt: skip


def test_an_operator_ends_his_own_notice_first_and_then_those_of_other_sources() -> None:
    story = Story()
    termination = notice(story)
    announce(story, termination)
    story.took([orders.announce(300.0, "", "root", BOOT, story.now)])
    story.passes(3)
    story.took([orders.call_off(story.state, "root", BOOT, story.now)])
    assert story.passes(5).writes == ["exclude"]
    story.took([orders.call_off(story.state, "root", BOOT, story.now)])
    assert announce(story, termination) == []
    assert announce(story, notice(story, 60.0)) == [EventKind.NOTICED]  # disregarded all the same
    assert story.passes(5).writes == ["exclude", "restore"]
    with pytest.raises(ValueError, match="no termination notice"):
        orders.call_off(story.state, "root", BOOT, story.now)
    announce(story)
    announce(story, notice(story))
    assert story.passes(3).writes == ["exclude", "restore", "exclude"]


def test_announced_again_before_the_node_is_back_it_stays_out_over_a_reboot() -> None:
    story = Story()
    announce(story, notice(story))
    story.passes(3)
    story.reachable = False
    announce(story)
    story.passes(1)
    announce(story, notice(story))
    story.reachable = True
    story.passes(3)
    assert story.reboots(OTHER_BOOT).heals(passes=100).writes == ["exclude"]


@pytest.mark.parametrize("summary", [False, True], ids=["ledger", "checkpoint"])
def test_a_machine_that_outlived_the_end_that_its_cloud_announced_is_back_after_the_horizon(summary: bool) -> None:
    """Maintenance of the host reboots the machine, and it is the same instance."""
    story = Story()
    announce(story, notice(story, source="azure", id="events:reboot"))
    story.passes(3).reboots(OTHER_BOOT)
    if summary:
        story.checkpoints().restarts_daemon()
    story.heals(passes=int((HORIZON - 60.0) / PASS))
    assert story.writes == ["exclude"]
    story.restarts_daemon().heals(passes=int(120.0 / PASS))
    assert story.writes == ["exclude", "restore"]


def test_a_machine_that_fails_after_the_end_that_its_cloud_announced_stays_out() -> None:
    story = Story()
    announce(story, notice(story))
    story.passes(3).reboots(OTHER_BOOT).fails().passes(int(2 * HORIZON / PASS))
    assert "restore" not in story.writes


def test_an_end_that_is_announced_again_after_the_boot_keeps_the_machine_out() -> None:
    story = Story()
    announce(story, notice(story))
    story.passes(3).reboots(OTHER_BOOT)
    announce(story, notice(story, None))
    assert story.heals(passes=int(2 * HORIZON / PASS)).writes == ["exclude"]


def test_a_notice_survives_a_restart_of_the_daemon_and_the_next_boot_forgets_it() -> None:
    """An exclusion left at the scheduler then stays for now: the same instance may be about to end all the same."""
    story = Story()
    announce(story, notice(story))
    story.passes(3).restarts_daemon().passes(3)
    assert (set(story.state.notices), story.writes) == ({"aws/spot:terminate"}, ["exclude"])
    story.reboots(OTHER_BOOT).passes(5)
    assert (story.state.notices, story.writes) == ({}, ["exclude"])
    assert story.restarts_daemon().state.notices == {}


def test_nobody_can_fill_the_memory() -> None:
    story = Story()
    announce(story, *(notice(story, id=f"maintenance:{n}") for n in range(2 * NOTICES_MOST)))
    assert len(story.state.notices) == NOTICES_MOST


def test_of_several_the_first_end_counts_and_an_unknown_one_goes_before_all() -> None:
    story = Story()
    now = story.now
    three = {n: notice(story, end, id=n) for n, end in (("a", 300.0), ("b", 30.0), ("c", 100.0))}
    assert imminent(three, HORIZON, now) == three["b"]
    assert imminent({**three, "d": notice(story, None, id="d")}, HORIZON, now) == notice(story, None, id="d")
    assert imminent({"e": notice(story, hard=False), "f": notice(story, called_off=True)}, HORIZON, now) is None
