"""Policy's memory is a replay of the events: cut, restarted or summed up anywhere, it goes on the same."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.health.event_data import write
from gpuwarden.health.model import Advice, Event, EventKind
from gpuwarden.health.state import State
from gpuwarden.health.state import fold as judge_fold
from gpuwarden.policy import orders
from gpuwarden.policy.fold import fold
from gpuwarden.policy.model import Why
from gpuwarden.policy.situation import excluded
from gpuwarden.policy.state import Hold, PolicyState
from support.policy_story import OTHER_BOOT, SETTINGS, Story, restored, xid
from support.schedulers import Node

Action = Callable[[Story, int], object]


def brought_back(story: Story, *, force: bool) -> None:
    if story.state.notice is None:
        with suppress(orders.FailuresStand):
            restored(story, force=force)


def called_off(story: Story) -> None:
    try:
        story.took([orders.call_off(story.state, "root", story.boot_id, story.now)])
    except ValueError:
        return


def changed(story: Story, **more: object) -> None:
    story.cluster.nodes["n1"] = replace(story.cluster.nodes["n1"], **more)  # type: ignore[arg-type]


ACTIONS: dict[str, Action] = {
    "fail": lambda story, n: story.fails(xid(n % 8, (Advice.RESET_GPU, Advice.CONTACT_SUPPORT)[n % 4 == 0])),
    "heal": lambda story, n: story.heals(passes=n),
    "wait": lambda story, n: story.waits(20.0 * n),
    "unknown": lambda story, n: story.unknown(passes=n % 4),
    "away": lambda story, n: setattr(story, "reachable", n % 2 == 0),
    "exclude": lambda story, n: story.took([orders.exclude("al", f"reason {n}", story.boot_id, story.now)]),
    "restore": lambda story, _: brought_back(story, force=False),
    "override": lambda story, _: brought_back(story, force=True),
    "notice": lambda story, n: story.took([orders.announce(n, "spot", "root", story.boot_id, story.now)]),
    "called off": lambda story, _: called_off(story),
    "ack": lambda story, n: story.records(EventKind.ACKNOWLEDGED, xid(n % 8).key),
    "drained": lambda story, n: story.drained_by_hand(f"rack move {n}"),
    "undrained": lambda story, _: story.undrained_by_hand(),
    "remark": lambda story, _: changed(story, reason=f"{story.reason} : Not responding" if story.reason else ""),
    "reboot": lambda story, n: story.reboots(f"{n:08x}{OTHER_BOOT[8:]}"),
}
scripts = st.lists(st.tuples(st.sampled_from(sorted(ACTIONS)), st.integers(0, 30)), max_size=14)


def play(story: Story, script: list[tuple[str, int]]) -> None:
    for action, number in script:
        ACTIONS[action](story, number)
        story.passes()


def durable(state: PolicyState) -> PolicyState:
    return replace(
        state, clean=0, clean_since=None, sequence=0, unknown_since=None, foreign=frozenset(), cycled=frozenset()
    )


@settings(deadline=None, max_examples=120)
@given(script=scripts)
def test_the_state_is_the_fold_of_the_ledger_and_so_is_that_of_its_summary(script: list[tuple[str, int]]) -> None:
    story = Story()
    play(story, script)
    state = durable(story.state)
    assert durable(story.restarts_daemon().state) == state
    assert durable(story.checkpoints().restarts_daemon().state) == state


@pytest.mark.slow
@settings(deadline=None, max_examples=80)
@given(before=scripts, after=scripts)
def test_a_restart_at_any_point_changes_nothing_that_is_done_to_the_scheduler(
    before: list[tuple[str, int]], after: list[tuple[str, int]]
) -> None:
    through, cut = Story(), Story()
    play(through, before)
    play(cut, before)
    cut.checkpoints().restarts_daemon()
    for story in (through, cut):
        story.unknown(passes=1)  # a restart counts clean passes again
        play(story, after)
    assert cut.writes == through.writes
    assert cut.reason == through.reason


@pytest.mark.slow
@settings(deadline=None, max_examples=120)
@given(script=scripts, reason=st.sampled_from(["rack move", "Kill task failed", "Not responding"]))
def test_a_foreign_exclusion_is_never_overwritten_and_never_lifted(script: list[tuple[str, int]], reason: str) -> None:
    story = Story()
    play(story, [step for step in script if step[0] not in ("drained", "undrained", "remark")])
    story.cluster.nodes["n1"] = Node(reason=reason, since=story.now.wall)
    written = list(story.writes)
    play(story, [step for step in script if step[0] not in ("drained", "undrained", "remark")])
    assert (story.reason, story.writes) == (reason, written)


@pytest.mark.slow
@settings(deadline=None, max_examples=80)
@given(script=scripts)
def test_in_mode_observe_only_a_person_s_orders_are_written(script: list[tuple[str, int]]) -> None:
    story = Story(replace(SETTINGS, enforce=False))
    play(story, [step for step in script if step[0] not in ("exclude", "restore")])
    assert story.writes == []


@pytest.mark.parametrize(
    "kind", [kind for kind in EventKind if kind not in (EventKind.BOOT, EventKind.MACHINE_CHANGED)]
)
def test_an_event_with_only_its_kind_ends_neither_judge_nor_policy(kind: EventKind) -> None:
    story = Story()
    odd = Event(
        kind=kind, at=story.now, boot_id=story.boot_id, data={"actuator": 7, "why": None, "result": "?", "since": "x"}
    )
    state = fold(story.state, odd)
    story.ledger.append(odd)
    assert durable(story.restarts_daemon().state) == durable(state)
    assert judge_fold(State(), odd).tracks == {}


def test_a_ledger_of_another_machine_leaves_nothing_of_policy() -> None:
    story = Story().fails()
    story.records(EventKind.MACHINE_CHANGED)
    assert durable(story.state) == PolicyState(boot_id=story.boot_id)


def test_what_others_excluded_is_remembered_where_it_is_configured_and_until_ours_takes_its_place() -> None:
    story = Story()
    story.drained_by_hand("rack move")
    state = story.passes().restarts_daemon().state
    assert tuple(excluded(state, ("slurm",), {}, {})) == (("slurm", "foreign"),)
    assert not tuple(excluded(state, (), {}, {})), "no read could show its end"
    ours = Hold(actuator="slurm", why=Why.OPERATOR, reason="fan", at=story.now, boot_id=story.boot_id)
    story.records(EventKind.EXCLUDED, data=write(ours))
    assert tuple(excluded(story.state, ("slurm",), {}, {})) == (("slurm", "operator"),)


def test_what_intents_came_to_is_counted_once_over_restarts_and_summaries() -> None:
    story = Story().fails()
    assert story.state.tried == {"exclude_done": 1}
    story.restarts_daemon().checkpoints().restarts_daemon().checkpoints().restarts_daemon().fails()
    assert story.state.tried == {"exclude_done": 1}
