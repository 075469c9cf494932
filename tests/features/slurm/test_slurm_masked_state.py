"""An answer of Slurm about one node may say mixed in place of down: what is asked to know, and what is done where there is no answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwarden.features.evacuation.slurm.final_node_state import FinalState, FinalStateResult, set_final_state
from gpuwarden.features.slurm.node_actuator import SlurmActuator
from gpuwarden.policy.model import Owner
from gpuwarden_collectors.base import host_clock
from gpuwarden_collectors.slurm.errors import OddAnswer
from gpuwarden_collectors.slurm.options import SlurmOptions
from support.shown_node import ShownNode
from support.slurm_reconciler import exclude

TERMINATION = "gpuwarden: termination boot=1b4e28ba instance=i-0af01c23"


def an_actuator(node: ShownNode) -> SlurmActuator:
    return SlurmActuator(SlurmOptions(enabled=True, node="n1"), node.client, clock=host_clock)


async def test_a_node_with_a_reason_is_drained_although_squeue_fails(tmp_path: Path) -> None:
    node = ShownNode(tmp_path, "mixed", "a note of an administrator", jobs=None)
    actuator = an_actuator(node)
    state = await actuator.read()
    assert (state.reachable, state.owner) == (True, Owner.NONE)
    await actuator.apply(exclude(), state)
    assert any("State=DRAIN" in line for line in node.asked("scontrol update"))


@pytest.mark.parametrize(("jobs", "asked"), [("R", 1), ("CG", 6)])
async def test_a_reason_beside_a_job_that_runs_is_asked_for_once(tmp_path: Path, jobs: str, asked: int) -> None:
    """A node that is down runs no job; one that ends there may be what ran when it was set down."""
    node = ShownNode(tmp_path, "mixed", "a note of an administrator", jobs=jobs)
    actuator = an_actuator(node)
    for _ in range(3):
        assert (await actuator.read()).owner is Owner.NONE
    assert len(node.asked("squeue")) == asked
    node.shows("mixed", "a fan is replaced")
    await actuator.read()
    assert len(node.asked("squeue")) > asked, "another reason is asked for"


async def test_a_node_without_a_reason_costs_no_question_about_jobs(tmp_path: Path) -> None:
    node = ShownNode(tmp_path, "mixed")
    await an_actuator(node).read()
    assert not [line for line in node.asked("squeue") if "--nodelist" in line]


async def test_a_drained_node_is_asked_for_suspended_jobs_until_it_had_none(tmp_path: Path) -> None:
    node = ShownNode(tmp_path, "idle+drain", TERMINATION, jobs="S")
    actuator = an_actuator(node)
    assert [(await actuator.read()).empty for _ in range(2)] == [False, False]
    node = ShownNode(tmp_path, "idle+drain", TERMINATION)
    assert [(await actuator.read()).empty for _ in range(3)] == [True] * 3
    assert len(node.asked("squeue")) == 3


async def test_a_drained_node_whose_suspended_jobs_are_not_known_is_read_and_not_empty(tmp_path: Path) -> None:
    state = await an_actuator(ShownNode(tmp_path, "idle+drain", TERMINATION, jobs=None)).read()
    assert (state.owner, state.empty) == (Owner.OURS, False)


@pytest.mark.parametrize("state", ["mixed+drain", "mixed+drain+completing"])
async def test_a_final_state_that_cannot_be_seen_is_what_slurm_accepted(tmp_path: Path, state: str) -> None:
    node = ShownNode(tmp_path, state, TERMINATION)
    outcome = await set_final_state(node.commands, "n1", FinalState.DOWN, TERMINATION)
    assert outcome.result is FinalStateResult.DONE
    assert "until Slurm counts its jobs again" in outcome.text


@pytest.mark.parametrize(("state", "final"), [("idle+drain", FinalState.DOWN), ("mixed+drain", FinalState.POWER_DOWN)])
async def test_a_final_state_that_could_be_seen_and_is_not_there_is_an_error(
    tmp_path: Path, state: str, final: FinalState
) -> None:
    node = ShownNode(tmp_path, state, TERMINATION)
    with pytest.raises(OddAnswer, match="Slurm accepted it"):
        await set_final_state(node.commands, "n1", final, TERMINATION)
