"""A job leaves a node that is about to end, once, and runs elsewhere: whatever else requeues it, and however it ends meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from gpuwarden.features.evacuation.slurm.requeue import Requeueing, RequeueOutcome, requeue
from gpuwarden_collectors.slurm.client import Commands, SlurmClient
from gpuwarden_collectors.slurm.departing_facts import SlurmJob
from support.slurm import SLURM_PARTS, Slurm
from support.slurm_ranks import Ranks, the_job

pytestmark = SLURM_PARTS

OWN_REASON = "gpuwarden: termination boot=1b4e28ba instance=i-0af01c23"


@pytest.fixture
async def commands(slurm: Slurm) -> AsyncIterator[Commands]:
    commands = SlurmClient(conf=slurm.conf, timeout=60.0).routine
    yield commands
    await commands.client.close()


async def until_it_waits_no_more(commands: Commands, job: SlurmJob, node: str = "n1") -> RequeueOutcome:
    """Requeue as the daemon does: ask again for as long as the job's processes are ending."""
    while (outcome := await requeue(commands, job, node)).result is Requeueing.WAITS:
        pass
    return outcome


def running(slurm: Slurm, *options: str, script: str = "sleep 300") -> int:
    job = slurm.submit(script, *options)
    slurm.wait(lambda: slurm.job_state(job) == "RUNNING", f"job {job}")
    return job


def restarts(slurm: Slurm, job: int) -> str:
    return slurm.job(job).get("Restarts", "")


@pytest.mark.slow
async def test_two_nodes_that_go_requeue_their_job_once_and_it_runs_on_the_third(
    slurm: Slurm, commands: Commands
) -> None:
    ranks = Ranks(slurm)
    slurm.drain("n3", "kept free")
    number = ranks.start("-N1-2", "-n2", ranks=2)
    job = await the_job(commands, number)
    assert job.node_count == 2
    for node in ("n1", "n2"):
        slurm.drain(node, OWN_REASON)
    slurm.scontrol("update", "NodeName=n3", "State=UNDRAIN")
    outcomes = await asyncio.gather(*(until_it_waits_no_more(commands, job, node) for node in ("n1", "n2")))
    assert [outcome.result for outcome in outcomes] == [Requeueing.REQUEUED] * 2
    ranks.ready(number, run=1)
    assert (restarts(slurm, number), slurm.job(number)["NodeList"]) == ("1", "n3")
    assert (await requeue(commands, job, "n1")).result is Requeueing.REQUEUED
    assert (restarts(slurm, number), slurm.job_state(number)) == ("1", "RUNNING")


@pytest.mark.slow
async def test_it_is_not_requeued_while_the_node_could_get_it_back(slurm: Slurm, commands: Commands) -> None:
    """The exclusion may be anybody's, gpuwarden's or a person's."""
    number = running(slurm, "-N1", script=f"exec {Ranks(slurm).script} USR1")
    node = slurm.job(number)["NodeList"]
    job = await the_job(commands, number, node)
    assert (await requeue(commands, job, node)).result is Requeueing.NOT_YET
    assert slurm.job_state(number) == "RUNNING"
    other = "n2" if node != "n2" else "n3"
    assert (await requeue(commands, job, other)).result is Requeueing.ELSEWHERE
    slurm.drain(node, "an administrator replaces a fan")
    assert (await until_it_waits_no_more(commands, job, node)).result is Requeueing.REQUEUED
    assert restarts(slurm, number) == "1"
    assert slurm.reason(node) == "an administrator replaces a fan"


@pytest.mark.slow
async def test_what_cannot_be_requeued_is_named_and_runs_on(slurm: Slurm, commands: Commands) -> None:
    slurm.drain("n2,n3", "kept free")
    slurm.command("salloc", "--no-shell")  # its allocation stays
    (session,) = slurm.command("squeue", "-h", "--states=R", "--Format=JobID:0").split()
    kept, pinned = slurm.submit("sleep 300", "--no-requeue"), slurm.submit("sleep 300", "-w", "n1")
    why = {int(session): "only batch jobs", kept: "--no-requeue", pinned: "it requires n1"}
    slurm.wait(lambda: {slurm.job_state(number) for number in why} == {"RUNNING"}, "the jobs")
    slurm.drain("n1", OWN_REASON)
    for number, text in why.items():
        outcome = await requeue(commands, await the_job(commands, number), "n1")
        assert outcome.result is Requeueing.REFUSED
        assert text in outcome.text
    assert {slurm.job_state(number) for number in why} == {"RUNNING"}


@pytest.mark.slow
async def test_a_job_that_ended_meanwhile_is_not_requeued(slurm: Slurm, commands: Commands) -> None:
    """A plain `scontrol requeue` runs a completed job again."""
    done = slurm.folder / "jobs/done"
    done.unlink(missing_ok=True)
    number = running(slurm, "-w", "n1", script=f"while ! [ -e {done} ]; do sleep 0.1; done")
    job = await the_job(commands, number)
    slurm.drain("n1", OWN_REASON)
    done.touch()
    slurm.wait(lambda: slurm.job_state(number) == "COMPLETED", "its end")
    assert (await requeue(commands, job, "n1")).result is Requeueing.ENDED
    assert (slurm.job_state(number), restarts(slurm, number)) == ("COMPLETED", "0")


@pytest.mark.slow
async def test_a_task_of_an_array_goes_alone(slurm: Slurm, commands: Commands) -> None:
    """Its last task has the number of the whole array."""
    slurm.drain("n2,n3", "kept free")
    array = slurm.submit("exec sleep 300", "--array=0-1")
    slurm.wait(lambda: slurm.command("squeue", "-h", "--states=R").count("\n") == 2, "both tasks")
    job = await the_job(commands, array)
    slurm.drain("n1", OWN_REASON)
    slurm.scontrol("update", "NodeName=n2,n3", "State=UNDRAIN")
    assert (await until_it_waits_no_more(commands, job)).result is Requeueing.REQUEUED
    output = slurm.command("squeue", "-h", "--Format=JobArrayID:0 ,RestartCnt:0")
    assert sorted(line.split()[1] for line in output.splitlines()) == ["0", "1"]
    assert f"{job.called} 1" in output


@pytest.mark.slow
async def test_a_job_that_requeues_itself_on_the_signal_is_only_brought_forward(
    slurm: Slurm, commands: Commands
) -> None:
    script = f"trap 'scontrol requeue $SLURM_JOB_ID; sleep 60' USR1; echo up >{slurm.folder}/jobs/up; while :; do sleep 0.1; done"
    number = running(slurm, script=script)
    node = slurm.job(number)["NodeList"]
    job = await the_job(commands, number, node)
    slurm.wait((slurm.folder / "jobs/up").exists, "its trap")
    slurm.drain(node, OWN_REASON)
    slurm.command("scancel", "--batch", "--signal=USR1", str(number))
    slurm.wait(lambda: restarts(slurm, number) == "1", "it to requeue itself")
    assert (await until_it_waits_no_more(commands, job, node)).result is Requeueing.REQUEUED
    slurm.wait(lambda: slurm.job_state(number) == "RUNNING", "it to run")
    assert restarts(slurm, number) == "1"
    assert slurm.job(number)["NodeList"] != node
