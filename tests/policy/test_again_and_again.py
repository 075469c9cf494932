"""From a failure that each reset ends to what the scheduler is told when it comes for the third time within a day."""

from __future__ import annotations

from gpuwarden_collectors.event_facts import GpuResetEvent
from support.hosts import Host, slot
from support.judged_stories import live
from support.policy_story import Story, restored

HOURS_APART = 3


def fails_and_is_reset(host: Host, story: Story, index: int = 3) -> None:
    """Xid 48 on that GPU, a reset that ends it, and five minutes without a finding."""
    host.step(host.xid(index, 48))
    live(host, story, 120)
    assert "xid=48" in story.reason
    host.step(GpuResetEvent(at=host.now, slot=slot(index), ok=True), collect=False)
    live(host, story, 300)
    assert host.codes == []


def hours_pass(host: Host, story: Story) -> None:
    host.uptime += HOURS_APART * 3_600.0
    story.now = host.now
    live(host, story, 60)


def test_the_third_like_failure_of_a_board_within_a_day_keeps_the_node_out_until_a_person_restores_it() -> None:
    host, story = Host(8), Story()
    live(host, story, 60)
    for _ in range(2):
        fails_and_is_reset(host, story)
        assert story.reason == "", "a reset that ended it brings the node back"
        hours_pass(host, story)
    fails_and_is_reset(host, story)
    hours_pass(host, story)
    assert story.writes == ["exclude", "restore"] * 2 + ["exclude"]
    assert story.last is not None
    blocked = story.last.blocked["slurm"]
    assert blocked.startswith(f"xid.48@gpu/{slot(3)} occurred 3 times within a day: only a person")
    assert restored(story).passes().reason == ""


def test_a_third_failure_of_another_board_or_after_a_day_brings_the_node_back() -> None:
    host, story = Host(8), Story()
    live(host, story, 60)
    fails_and_is_reset(host, story, 3)
    hours_pass(host, story)
    fails_and_is_reset(host, story, 5)
    host.uptime += 22 * 3_600.0
    hours_pass(host, story)
    fails_and_is_reset(host, story, 3)
    assert (story.writes, story.reason) == (["exclude", "restore"] * 3, "")
