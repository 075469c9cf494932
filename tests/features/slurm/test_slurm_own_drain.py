"""A drain of Slurm's own is nobody else's, also where Slurm gives it a text that gpuwarden wrote."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwarden.policy import reasons
from gpuwarden.policy.model import Owner, Result, Why
from gpuwarden.policy.preconditions import as_owned
from support.slurm import GPUS, SLURM_PARTS, Slurm
from support.slurm_reconciler import FAILURE, an_actuator, attempt, exclude, restore

pytestmark = SLURM_PARTS

TERMINATION = "gpuwarden: termination boot=1b4e28ba instance=i-0af01c23"


def drains_itself(slurm: Slurm) -> None:
    """A GPU is missing when slurmd registers, and is there again."""
    for gpus in (GPUS - 1, GPUS):
        slurm.stop("n1")
        slurm.plug(gpus)
        slurm.start("n1")
        slurm.wait(lambda: "DRAIN" in slurm.state("n1"), "Slurm to drain the node")
    slurm.wait(lambda: slurm.state("n1") == {"IDLE", "DRAIN"}, "the node to be whole, and drained")


@pytest.mark.parametrize(
    ("state", "why", "reason"), [("DRAIN", Why.FAILURE, FAILURE), ("DOWN", Why.TERMINATION, TERMINATION)]
)
async def test_what_gpuwarden_brought_back_has_no_text_of_gpuwardens(
    slurm: Slurm, state: str, why: Why, reason: str
) -> None:
    slurm.drain("n1", reason, state=state)
    assert (await attempt(slurm, replace(restore(why, reason), rebooted=True))).result is Result.DONE
    assert reasons.parse(slurm.reason("n1")) is None
    drains_itself(slurm)
    assert (await an_actuator(slurm).read()).owner is Owner.FOREIGN
    for intent in (restore(why, reason), replace(restore(why, ""), force=True)):
        assert (await attempt(slurm, intent)).result is Result.DROPPED
    assert (await attempt(slurm, exclude())).result is Result.DROPPED
    assert slurm.state("n1") == {"IDLE", "DRAIN"}


async def test_what_an_administrator_brought_back_is_nobodys_when_slurm_drains_it_itself(slurm: Slurm) -> None:
    """Slurm 23.11 and newer without slurmdbd drain with the very text and time of the drain that was ended."""
    done = await attempt(slurm, exclude())
    slurm.scontrol("update", "NodeName=n1", "State=RESUME")
    drains_itself(slurm)
    node_state = await an_actuator(slurm).read()
    assert as_owned(node_state, done.since).owner is Owner.FOREIGN
    ordered = replace(restore(Why.OPERATOR, ""), force=True, ended=done.since)
    assert (await attempt(slurm, ordered)).result is Result.DROPPED
    assert slurm.state("n1") == {"IDLE", "DRAIN"}


async def test_a_node_that_an_administrator_sets_down_is_out_though_its_answer_counts_cpus_of_an_ended_job(
    slurm: Slurm,
) -> None:
    """The answer is mixed for as long as nobody asks for all nodes."""
    job = slurm.submit("sleep 300", "-w", "n1", "--no-requeue")
    slurm.wait(lambda: slurm.job_state(job) == "RUNNING", "the job")
    slurm.command("sinfo", "--noheader")
    slurm.drain("n1", "a fan is replaced", state="DOWN")
    slurm.wait(lambda: slurm.has_ended(job), "the job to end")
    assert (await an_actuator(slurm).read()).owner is Owner.FOREIGN
    assert (await attempt(slurm, exclude())).result is not Result.DONE
    assert slurm.reason("n1") == "a fan is replaced"
