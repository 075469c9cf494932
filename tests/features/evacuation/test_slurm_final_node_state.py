"""In the last seconds the controller is notified that a node is gone, where nobody else has plans with it."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gpuwarden.features.evacuation.slurm.final_node_state import FinalState, FinalStateResult, set_final_state
from gpuwarden.features.evacuation.slurm.requeue import Requeueing, requeue
from gpuwarden_collectors.slurm.client import Commands, SlurmClient
from gpuwarden_collectors.slurm.errors import Refused
from support.slurm import SLURM_PARTS, Slurm, processes_with, require_slurm, running, step_daemons
from support.slurm_ranks import Ranks, the_job

pytestmark = SLURM_PARTS

OWN_REASON = "gpuwarden: termination boot=1b4e28ba instance=i-0af01c23"
POWER_SAVING = "SuspendProgram=/bin/true\nResumeProgram=/bin/true\nSuspendTime=86400\nSuspendTimeout=1"


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    """Two nodes, and for each other test one without a slurmd, all of which Slurm may power down."""
    require_slurm()
    partitions = ("PartitionName=gpu Nodes=n[1-2] Default=YES MaxTime=INFINITE", "PartitionName=spare Nodes=f[1-3]")
    with (
        tempfile.TemporaryDirectory(prefix="gw-slurm-", ignore_cleanup_errors=True) as folder,
        running(Slurm(Path(folder), nodes=2, phantoms=3, more=POWER_SAVING, partitions=partitions)) as slurm,
    ):
        yield slurm


@pytest.fixture
async def commands(slurm: Slurm) -> AsyncIterator[Commands]:
    commands = SlurmClient(conf=slurm.conf, timeout=60.0).routine
    yield commands
    await commands.client.close()


async def test_a_node_that_is_out_for_another_reason_is_left_alone(slurm: Slurm, commands: Commands) -> None:
    for reason in ("a fan is replaced", "gpuwarden: failure gpu=3 xid=79", f"see {OWN_REASON}"):
        slurm.drain("f1", reason)
        for state in FinalState:
            assert (await set_final_state(commands, "f1", state, OWN_REASON)).result is FinalStateResult.NOT_OURS
        assert "DRAIN" in slurm.state("f1")
        assert "DOWN" not in slurm.state("f1")
        assert slurm.reason("f1") == reason


async def test_a_node_that_is_not_out_or_that_somebody_took_over_is_left_alone(
    slurm: Slurm, commands: Commands
) -> None:
    before = slurm.state("f2")
    assert (await set_final_state(commands, "f2", FinalState.DOWN, OWN_REASON)).result is FinalStateResult.NOT_OURS
    assert slurm.state("f2") == before
    slurm.drain("f2", OWN_REASON, state="FAIL")
    assert (await set_final_state(commands, "f2", FinalState.DOWN, OWN_REASON)).result is FinalStateResult.NOT_OURS
    assert "FAIL" in slurm.state("f2")
    with pytest.raises(Refused, match="n9"):
        await set_final_state(commands, "n9", FinalState.DOWN, OWN_REASON)


@pytest.mark.slow
async def test_a_job_whose_node_vanished_runs_elsewhere_after_the_final_node_update(
    slurm: Slurm, commands: Commands
) -> None:
    """The job would be completing until SlurmdTimeout without the update."""
    ranks = Ranks(slurm)
    slurm.drain("n2", "kept free")
    job = await the_job(commands, ranks.start(ranks=1, batch="exec {rank}"))
    slurm.drain("n1", OWN_REASON)
    slurm.scontrol("update", "NodeName=n2", "State=UNDRAIN")
    slurm.stop("n1", how=signal.SIGKILL)
    left = processes_with(f"SLURM_JOB_ID={job.id}", f"SLURM_CONF={slurm.conf}")
    for pid in (*step_daemons(slurm.folder, job.id), *left):  # first those who could still report the others' end
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert (await requeue(commands, job, "n1")).result is Requeueing.WAITS
    assert (await set_final_state(commands, "n1", FinalState.DOWN, OWN_REASON)).result is FinalStateResult.DONE
    assert {"DOWN", "DRAIN"} <= slurm.state("n1")
    assert slurm.reason("n1") == OWN_REASON
    assert (await set_final_state(commands, "n1", FinalState.DOWN, OWN_REASON)).result is FinalStateResult.ALREADY
    while (outcome := await requeue(commands, job, "n1")).result is Requeueing.WAITS:
        pass
    assert outcome.result is Requeueing.REQUEUED
    ranks.ready(job.id, ranks=1, run=1)
    assert slurm.job(job.id)["NodeList"] == "n2"


async def test_a_node_of_a_cloud_is_powered_down(slurm: Slurm, commands: Commands) -> None:
    slurm.drain("f3", OWN_REASON)
    assert (await set_final_state(commands, "f3", FinalState.POWER_DOWN, OWN_REASON)).result is FinalStateResult.DONE
    assert slurm.state("f3") & {"POWER_DOWN", "POWERING_DOWN", "POWERED_DOWN"}
    again = await set_final_state(commands, "f3", FinalState.POWER_DOWN, OWN_REASON)
    assert again.result in (FinalStateResult.ALREADY, FinalStateResult.NOT_OURS)  # Slurm drops the drain with it
