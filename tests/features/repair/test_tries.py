"""Two tries, then a person: what counts as one, what is remembered of it, and that a replay remembers the same."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.features.repair.memory import EMPTY, KEPT, Memory, events
from gpuwarden.features.repair.model import Outcome, Step, StepKind
from gpuwarden.features.repair.plan import Plan, plan, strongest
from gpuwarden.features.repair.preconditions import Precondition, obstacles
from gpuwarden.health.memory import State
from gpuwarden.health.model import Advice, Event, Json, Pin, link
from support.repair_scenes import (
    FINDING,
    NOW,
    OTHER_BOOT,
    UUID,
    begun,
    ended,
    planned,
    remembered,
    scene,
    state,
    tried,
    xid,
)
from support.snapshots import slot


def step_of(plan: Plan) -> str:
    return "person" if plan.step is None else str(plan.step)


def test_the_first_try_is_the_milder_step_the_second_the_stronger_and_then_it_is_for_a_person() -> None:
    steps = [step_of(planned(tried(number))) for number in range(4)]
    assert steps == [f"reset_gpu {slot(3)}", "reboot", "person", "person"]
    last = planned(tried(2))
    assert last.gave_up
    assert "2 of its steps within a day did not help" in last.why


def test_an_advice_that_became_stronger_since_the_reset_leads_to_the_reboot_and_then_to_a_person() -> None:
    """The judge itself advises a reboot once a reset did not help, and an inspection after that."""
    came_back = replace(FINDING, advice=Advice.REBOOT, evidence={"came_back_after": "a GPU reset"})
    assert step_of(planned(tried(1), came_back)) == "reboot"
    assert step_of(planned(tried(2), replace(FINDING, advice=Advice.INSPECT_HARDWARE))) == "person"


def test_the_gpu_is_named_by_slot_and_uuid() -> None:
    assert planned().step == Step(StepKind.RESET_GPU, None, slot(3), UUID)


@pytest.mark.parametrize(
    ("allowed", "steps"),
    [
        (("reset_gpu",), [f"reset_gpu {slot(3)}", "person"]),
        (("reboot",), ["reboot"]),
        (("restart_service", "reload_driver"), ["person"]),
        ((), ["person"]),
    ],
)
def test_a_step_that_is_not_allowed_is_left_out(allowed: tuple[str, ...], steps: list[str]) -> None:
    assert [step_of(planned(tried(number), allowed=allowed)) for number in range(len(steps))] == steps


def test_a_reboot_that_did_not_help_is_not_followed_by_what_is_milder() -> None:
    memory = remembered(begun("t0", 3_700.0, StepKind.REBOOT), ended("t0", 3_600.0, step=StepKind.REBOOT))
    assert step_of(planned(memory)) == "person"


def test_what_returns_within_a_day_is_the_same_and_what_returns_later_is_not() -> None:
    assert planned(tried(1, hours=23.0)).number == 2
    assert planned(tried(1, hours=24.1)).number == 1


@pytest.mark.parametrize("outcome", list(Outcome))
def test_what_may_have_been_done_is_a_try_and_what_was_refused_is_none(outcome: Outcome) -> None:
    counts = outcome not in (Outcome.REFUSED, Outcome.OBSERVED)
    assert planned(tried(1, outcome=outcome)).number == 1 + counts


def test_what_the_helper_refuses_three_times_within_a_day_is_for_a_person() -> None:
    steps = [step_of(planned(tried(number, outcome=Outcome.REFUSED))) for number in range(5)]
    assert steps == [*[f"reset_gpu {slot(3)}"] * 3, "person", "person"]


def test_another_board_in_the_slot_and_another_kind_of_failure_begin_at_the_foot() -> None:
    memory = tried(2)
    assert planned(memory, xid(48)).number == 1
    other = replace(state(memory), pins={slot(3): Pin(slot=slot(3), uuid="GPU-other")})
    assert plan(FINDING, other, scene().verdict, ("reset_gpu", "reboot"), NOW).number == 1


def test_links_of_one_board_are_one_kind() -> None:
    down = replace(FINDING, key=replace(FINDING.key, code="nvlink_down", detail="", subject=link(slot(3), 4)))
    other = replace(down, key=replace(down.key, subject=link(slot(3), 5)))
    event = replace(begun("t0", 3600.0, StepKind.RESET_ALL), key=down.key)
    memory = remembered(event, replace(ended("t0", 3500.0, step=StepKind.RESET_ALL), key=down.key))
    assert (planned(memory, down).number, planned(memory, other).number) == (2, 2)
    assert step_of(planned(memory, other)) == "reboot"


def test_the_strongest_step_comes_first_since_it_does_what_the_milder_ones_do() -> None:
    reset, reboot, person = (
        planned(),
        planned(cause=xid(79, 5, Advice.REBOOT)),
        planned(cause=xid(54, 1, Advice.INSPECT_HARDWARE)),
    )
    assert strongest([reset, person, reboot]) is reboot
    assert strongest([person]) is None


# --- killed at any point


LIFE = (begun("t0", 7_300.0), ended("t0", 7_200.0, Outcome.FAILED), begun("t1", 3_700.0, StepKind.REBOOT),
        ended("t1", 3_600.0, Outcome.REBOOTED, StepKind.REBOOT, OTHER_BOOT))  # fmt: skip


@pytest.mark.parametrize("cut", range(len(LIFE) + 1))
def test_after_a_kill_at_any_point_no_step_is_begun_while_one_has_not_ended(cut: int) -> None:
    memory = remembered(*LIFE[:cut])
    barriers = {obstacle.precondition for obstacle in obstacles(scene(memory=memory), planned(memory))}
    assert (Precondition.RUNNING in barriers) is (cut % 2 == 1)
    assert planned(memory).number == 1 + (cut + 1) // 2
    assert (Precondition.STEP in barriers) is (cut >= 3)


@pytest.mark.parametrize("cut", range(len(LIFE) + 1))
def test_events_that_are_read_twice_count_once(cut: int) -> None:
    """A ledger that was opened late folds what happened since the start again."""
    assert remembered(*LIFE[:cut], *LIFE[:cut]) == remembered(*LIFE[:cut])


def test_an_end_whose_beginning_was_lost_is_no_try() -> None:
    assert remembered(LIFE[1]) == EMPTY


# --- replay


@st.composite
def lives(draw: st.DrawFn) -> list[Event]:
    """Draw the events of some tries, each of which may have ended."""
    made: list[Event] = []
    for number in range(draw(st.integers(0, 6))):
        when = 50_000.0 - 1_000.0 * number
        made.append(begun(f"t{number}", when, draw(st.sampled_from(list(StepKind)))))
        if draw(st.booleans()):
            made.append(ended(f"t{number}", when - 100.0, draw(st.sampled_from(list(Outcome)))))
    if draw(st.booleans()):
        made.append(
            replace(made[0] if made else begun("x", 1.0), kind="bundle_made", data={"finding": str(FINDING.key)})
        )
    return made


@given(lives(), lives())
@settings(max_examples=150, deadline=None)
def test_a_checkpoint_gives_the_same_memory_and_what_comes_after_it_too(
    before: list[Event], after: list[Event]
) -> None:
    memory = remembered(*before)
    summary = list(events(memory, NOW, State()))
    assert remembered(*summary) == memory
    assert remembered(*summary, *after) == remembered(*before, *after)


def test_so_many_tries_are_kept_and_the_newest_are() -> None:
    made = [event for n in range(KEPT + 9) for event in (begun(f"t{n}", 9_000.0 - n), ended(f"t{n}", 9_000.0 - n))]
    memory = remembered(*made)
    assert len(memory.tries) == KEPT
    assert memory.tries[-1].id == f"t{KEPT + 8}"
    assert all(earlier.at.wall <= later.at.wall for earlier, later in pairwise(memory.tries))
    assert memory.counts == {"reset_gpu_done": KEPT + 9}


@pytest.mark.parametrize("data", [{}, {"id": ""}, {"id": 7}, {"id": "t", "step": "explode", "outcome": 3}])
def test_a_damaged_event_is_no_harm(data: dict[str, Json]) -> None:
    for kind in ("repair_begun", "repair_ended", "repair_tried", "bundle_made", "summed"):
        memory = remembered(replace(begun("t0", 1.0), kind=kind, data=data))
        assert isinstance(memory, Memory)
