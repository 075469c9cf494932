"""A signal to a whole job reaches each rank on all nodes once, and nobody else: on a Slurm whose jobs have an extern step."""

from __future__ import annotations

import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gpuwarden.features.evacuation.policy.delivery import DeliveryRules, delivery
from gpuwarden.features.evacuation.policy.model import Sent
from gpuwarden.features.evacuation.policy.steps import SignalJob
from gpuwarden.features.evacuation.scheduler import steps_ended
from gpuwarden.features.evacuation.signalling import signal_through_slurm
from gpuwarden.features.evacuation.slurm.job_scan import SlurmJobScan
from gpuwarden.features.evacuation.slurm.job_signals import Signalling, signal_batch, signal_steps
from gpuwarden_collectors.slurm.client import Commands, SlurmClient
from gpuwarden_collectors.slurm.departing import listpids
from gpuwarden_collectors.slurm.departing_facts import SlurmJob
from support.evacuations import local, process
from support.slurm import SLURM_PARTS, Slurm, require_slurm, running
from support.slurm_ranks import Ranks, signal_job, the_job

pytestmark = SLURM_PARTS


def containing(more: str = "") -> Iterator[Slurm]:
    require_slurm()
    with (
        tempfile.TemporaryDirectory(prefix="gw-slurm-", ignore_cleanup_errors=True) as folder,
        running(Slurm(Path(folder), more=f"PrologFlags=Contain\n{more}")) as slurm,
    ):
        yield slurm


@pytest.fixture(scope="module")
def contained() -> Iterator[Slurm]:
    yield from containing()


@pytest.fixture
def slurm(contained: Slurm) -> Slurm:
    contained.clear()
    return contained


@pytest.fixture
async def commands(slurm: Slurm) -> AsyncIterator[Commands]:
    commands = SlurmClient(conf=slurm.conf, timeout=60.0).routine
    yield commands
    await commands.client.close()


async def others(commands: Commands, job: int) -> set[tuple[int, str]]:
    """The processes of a job that are no rank, with their step: the sleeping one of its extern step, its batch shell and srun."""
    return {
        (pid, listed.step)
        for node in ("n1", "n2", "n3")
        for pid, listed in (await listpids(commands, node)).items()
        if listed.job == job and not listed.step.isdigit()
    }


@pytest.mark.slow
async def test_each_rank_on_each_node_gets_it_once_and_nothing_else_of_the_job_does(
    slurm: Slurm, commands: Commands
) -> None:
    ranks = Ranks(slurm)
    step = "srun --overlap -N2 -n2 {rank}"
    number = ranks.start("-N2", "-w", "n[1-2]", ranks=4, batch=f"{step} & {step} & wait")
    bystanders = await others(commands, number)
    assert "batch" in {step for _, step in bystanders}  # up to 24.11 the extern step has a process, too
    outcome = await signal_job(commands, await the_job(commands, number), "USR1")
    assert (outcome.result, set(outcome.steps)) == (Signalling.SENT, {f"{number}.0", f"{number}.1"})
    elsewhere = await signal_job(commands, await the_job(commands, number), "USR1", steps={"2"})
    assert (elsewhere.result, f"{number}.0" in elsewhere.text) == (Signalling.NO_STEPS, True)
    ranks.wait_received(number, "USR1")
    assert await others(commands, number) == bystanders
    assert slurm.job_state(number) == "RUNNING"
    assert ranks.received(number) == {name: {"USR1": 1} for name in ("0.0", "0.1", "1.0", "1.1")}


@pytest.fixture
def managed() -> Iterator[Slurm]:
    """Yield a Slurm of which, from 24.05 on, the first node of a job manages its steps."""
    yield from containing("SlurmctldParameters=enable_stepmgr")


@pytest.mark.slow
async def test_steps_that_a_node_of_the_job_manages_are_signalled_and_count_while_they_run(
    managed: Slurm, tmp_path: Path
) -> None:
    """The controller alone does not list them; nor does anybody while that node does not answer."""
    ranks = Ranks(managed)
    scan = SlurmJobScan(SlurmClient(node="n2", conf=managed.conf, timeout=60.0), tmp_path / "signals")
    number = ranks.start("-N2", "-w", "n[1-2]", batch="srun -N2 -n2 {rank} & wait; sleep 300")
    job = await the_job(scan.commands, number)
    assert not await steps_ended(scan, job)
    outcome = await signal_job(scan.commands, job, "USR1")
    assert (outcome.result, outcome.steps) == (Signalling.SENT, (f"{number}.0",))
    ranks.wait_received(number, "USR1")
    managed.stop("n1")
    assert not await steps_ended(scan, job)
    managed.start("n1")
    await scan.close()


@pytest.mark.slow
async def test_a_step_that_runs_on_other_nodes_alone_gets_nothing_and_lives_on(
    slurm: Slurm, commands: Commands, tmp_path: Path
) -> None:
    """The signal would end what has no handler there, such as a server of data or a shell that a user has attached."""
    ranks = Ranks(slurm)
    first_runs = "squeue -hs -j$SLURM_JOB_ID -o%i | grep -q '[.]0$'"
    server = f"srun --overlap -N1 -n1 -w n2 {ranks.script} ''"
    batch = f"srun --overlap -N2 -n2 {{rank}} & until {first_runs}; do sleep 0.1; done; {server} & wait"
    number = ranks.start("-N2", "-w", "n[1-2]", ranks=3, batch=batch)
    job = await the_job(commands, number)
    scan = SlurmJobScan(SlurmClient(node="n1", conf=slurm.conf, timeout=60.0), tmp_path / "signals")
    here = local(number, process(1, uid=job.uid))
    wide = delivery(here, job, DeliveryRules(default="USR1"), now=time.time())
    delivered = await signal_through_slurm(scan, SignalJob(here, wide, job), goes_on, None, time.time())
    await scan.close()
    assert (delivered.result, delivered.text) == (
        Sent.SENT,
        f"SIGUSR1 to step {number}.0; no rank that catches it is here in step {number}.1, which gets no signal",
    )
    slurm.wait(
        lambda: all(ranks.received(number)[rank]["USR1"] for rank in ("0.0", "0.1")),
        "the ranks of its step on both nodes",
    )
    assert ranks.received(number) == {"0.0": {"USR1": 1}, "0.1": {"USR1": 1}, "1.0": {}}
    assert f"{number}.1" in slurm.command("squeue", "-hs", f"-j{number}", "-o%i").split()


async def goes_on() -> bool:
    return True


@pytest.mark.slow
async def test_ranks_that_catch_a_term_live_on_and_so_does_their_step(slurm: Slurm, commands: Commands) -> None:
    ranks = Ranks(slurm)
    number = ranks.start("-N2", "-w", "n[1-2]", catch="TERM USR1")
    job = await the_job(commands, number)
    assert (await signal_job(commands, job, "TERM")).result is Signalling.SENT
    ranks.wait_received(number, "TERM")
    assert (await signal_job(commands, job, "USR1")).result is Signalling.SENT
    ranks.wait_received(number, "USR1")
    assert slurm.job_state(number) == "RUNNING"
    slurm.command("scancel", "--signal=KILL", f"{number}.0")  # else they live on for KillWait


@pytest.mark.slow
async def test_a_task_of_an_array_gets_it_alone_and_so_does_its_batch_script(slurm: Slurm, commands: Commands) -> None:
    ranks = Ranks(slurm)
    array = slurm.submit(f"{ranks.script} USR2 & srun {ranks.script} USR1", "--array=0-1", "-w", "n1")
    slurm.wait(
        lambda: len({number for number in (array, array + 1) if len(ranks.received(number)) == 2}) == 2, "its ranks"
    )
    job = await the_job(commands, array)  # its last task has the number of the whole array
    outcome = await signal_job(commands, job, "USR1")
    assert outcome.steps == (f"{job.called}.0",)
    ranks.slurm.wait(lambda: ranks.received(array)["0.0"]["USR1"] == 1, "its rank to get it")
    assert not ranks.received(array + 1)["0.0"]
    assert not ranks.received(array)["batch.0"]


@pytest.mark.slow
async def test_the_batch_script_gets_it_alone(slurm: Slurm, commands: Commands) -> None:
    ranks = Ranks(slurm)
    number = ranks.start("-w", "n1", ranks=2, batch="srun {rank} & exec {rank}")
    outcome = await signal_batch(commands, await the_job(commands, number), "USR1")
    assert outcome.result is Signalling.SENT
    slurm.wait(lambda: ranks.received(number)["batch.0"]["USR1"] == 1, "the batch script to get it")
    assert not ranks.received(number)["0.0"]


@pytest.mark.slow
async def test_an_unreachable_step_is_reported_and_nothing_is_sent(slurm: Slurm, commands: Commands) -> None:
    """A step in parts is known to scancel by its first part only."""
    ranks = Ranks(slurm)
    parts = ranks.start("-N2", "-n2", "-w", "n[1-2]", batch="srun -n1 -N1 {rank} : -n1 -N1 {rank}")
    stepless = ranks.start("-w", "n1", ranks=1, batch="{rank}")
    assert (await signal_job(commands, await the_job(commands, parts), "USR1")).result is Signalling.IN_PARTS
    job = await the_job(commands, stepless)
    assert (await signal_job(commands, job, "USR1")).result is Signalling.NO_STEPS
    assert not any(counts for number in (parts, stepless) for counts in ranks.received(number).values())
    slurm.command("scancel", str(stepless))
    slurm.wait(lambda: slurm.job_state(stepless) == "CANCELLED", "its end")
    assert (await signal_job(commands, job, "USR1")).result in (Signalling.GONE, Signalling.NO_STEPS)
    assert (await signal_batch(commands, job, "USR1")).result is Signalling.GONE


@pytest.mark.parametrize("signal", ["KILL", "INT", "STOP", "9", "usr1", ""])
async def test_no_other_signal_is_ever_sent(signal: str) -> None:
    commands = SlurmClient(folder=Path("/nonexistent")).routine
    job = SlurmJob(id=1, uid=1, state="running", nodes="n1", node_count=1, called="1")
    with pytest.raises(ValueError, match="never"):
        await signal_steps(commands, job, ("1.0",), signal)
    with pytest.raises(ValueError, match="never"):
        await signal_batch(commands, job, signal)
    assert commands.client.calls == 0
