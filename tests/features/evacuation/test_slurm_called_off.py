"""A notice that is called off while Slurm is asked about a job or the node: neither is touched any more.

Which notices stand is in `test_called_off.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpuwarden.features.evacuation.policy.steps import Requeue, SetFinalState
from gpuwarden.health.model import EventKind
from gpuwarden.policy.model import Notice
from support.evacuations import announced, stamp
from support.slurm import SLURM_PARTS, Slurm
from support.slurm_executor import OWN_REASON, ExecutorRig
from support.slurm_ranks import the_job

pytestmark = SLURM_PARTS

SPOT, LATER = announced(120.0), announced(120.0 + 400.0)
OTHER = announced(500.0, source="operator")
IN_THE_LAST_SECOND = stamp(1_119.0)
"""Of SPOT."""


@pytest.fixture
async def rig(slurm: Slurm, tmp_path: Path) -> AsyncIterator[ExecutorRig]:
    rig = ExecutorRig(slurm, tmp_path, now=IN_THE_LAST_SECOND)
    yield rig
    await rig.client.close()


READS_NODE = "^sinfo .*--nodes="


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "then", "requeued"),
    [((SPOT,), (), False), ((SPOT, OTHER), (OTHER,), True)],
    ids=["called off", "another announces the same end"],
)
async def test_a_job_is_requeued_only_if_its_notice_stands_right_before_that(
    slurm: Slurm, rig: ExecutorRig, before: tuple[Notice, ...], then: tuple[Notice, ...], requeued: bool
) -> None:
    number = slurm.submit("sleep 300", "-N1")
    slurm.wait(lambda: slurm.job_state(number) == "RUNNING", "the job")
    node = slurm.job(number)["NodeList"]
    rig.client.node.known = node
    job = await the_job(rig.client.routine, number, node)
    slurm.drain(node, OWN_REASON)
    rig.announces(*before)
    await rig.carries_out(before[0], Requeue(f"slurm/{number}", job), held=READS_NODE, then=then)
    assert slurm.job(number).get("Restarts", "0") == str(int(requeued))
    assert (EventKind.REQUEUED in [event.kind for event in rig.written]) == requeued
    assert EventKind.NOT_REQUEUED not in [event.kind for event in rig.written]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("then", "down"),
    [((LATER, OTHER), False), ((SPOT,), True)],
    ids=["moved away", "stands"],
)
async def test_the_node_is_set_down_only_if_that_very_end_stands_right_before_that(
    slurm: Slurm, rig: ExecutorRig, then: tuple[Notice, ...], down: bool
) -> None:
    slurm.drain("n1", OWN_REASON)
    rig.announces(SPOT, OTHER)
    await rig.carries_out(SPOT, SetFinalState("down"), held=READS_NODE, then=then)
    assert ("DOWN" in slurm.state("n1")) == down
    assert (EventKind.FINAL_NODE_STATE in [event.kind for event in rig.written]) == down
