"""Of several nodes that go at once exactly one signals a job that has them all; what others wrote stays."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpuwarden.features.evacuation.policy.delivery import MARK_STANDS, Aim, Delivery, Way
from gpuwarden.features.evacuation.policy.model import Sent
from gpuwarden.features.evacuation.policy.steps import SignalJob
from gpuwarden.features.evacuation.signalling import signal_through_slurm
from gpuwarden.features.evacuation.slurm.job_mark import Marking, MarkOutcome, mark, unmark
from gpuwarden.features.evacuation.slurm.job_scan import SlurmJobScan
from gpuwarden.policy.notices import id_of
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.slurm.client import Commands, SlurmClient
from gpuwarden_collectors.slurm.departing import read_job
from gpuwarden_collectors.slurm.departing_facts import SlurmJob
from gpuwarden_collectors.slurm.nodes import read_node
from support.evacuations import announced, local, process
from support.slurm import PATIENCE, SLURM_PARTS, Slurm
from support.slurm_executor import ExecutorRig
from support.slurm_hanging import HangingCommands
from support.slurm_ranks import Ranks, signal_job, the_job

pytestmark = SLURM_PARTS

ROUNDS = 2
PAIRS = (("n1", "n2"), ("n2", "n3"), ("n1", "n3"))
PAUSE = 8.0
"""Of production it is a small part, for controllers that answer at once; this machine may be busy with other tests."""


@pytest.fixture
async def commands(slurm: Slurm) -> AsyncIterator[Commands]:
    commands = SlurmClient(conf=slurm.conf, timeout=60.0).routine
    yield commands
    await commands.client.close()


def comment(slurm: Slurm, job: SlurmJob, text: str) -> None:
    slurm.scontrol("update", f"JobId={job.called}", f"AdminComment={text}")


async def comment_of(commands: Commands, job: SlurmJob) -> str:
    current = await read_job(commands, job)
    assert current is not None
    return current.admin_comment or ""


async def notice(slurm: Slurm, job: SlurmJob, node: str) -> MarkOutcome:
    """Mark the job as a node's daemon does whose notice comes within 100 ms of another node's."""
    commands = SlurmClient(conf=slurm.conf, timeout=60.0).routine
    try:
        await asyncio.sleep(random.uniform(0.0, 0.1))
        current = await the_job(commands, job.id, node)
        outcome = await mark(commands, current, node, time.time(), pause_least=PAUSE)
        if outcome.result is Marking.MARKED:
            await signal_job(commands, current, "USR1")
        return outcome
    finally:
        await commands.client.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_of_two_nodes_that_are_noticed_at_once_exactly_one_signals_the_job(
    slurm: Slurm, commands: Commands
) -> None:
    ranks = Ranks(slurm)
    numbers = [ranks.submit("-N2", f"--nodelist={','.join(pair)}") for pair in PAIRS]
    for number in numbers:
        ranks.ready(number)
    jobs = [await the_job(commands, number, pair[0]) for number, pair in zip(numbers, PAIRS, strict=True)]
    for turn in range(1, ROUNDS + 1):
        for job in jobs:
            comment(slurm, job, "")
        contests = zip(jobs, PAIRS, strict=True)
        outcomes = await asyncio.gather(*(notice(slurm, job, node) for job, pair in contests for node in pair))
        for pair, both in zip(PAIRS, zip(outcomes[::2], outcomes[1::2], strict=True), strict=True):
            results = dict(zip(pair, both, strict=True))
            (winner,) = [node for node, outcome in results.items() if outcome.result is Marking.MARKED]
            (other,) = [outcome for node, outcome in results.items() if node != winner]
            assert (other.result, other.node) == (Marking.TAKEN, winner)
        for job in jobs:
            ranks.wait_received(job.id, "USR1", turn)
    assert all(ranks.received(job.id) == {"0.0": {"USR1": ROUNDS}, "0.1": {"USR1": ROUNDS}} for job in jobs)


@pytest.mark.slow
async def test_what_an_administrator_wrote_is_left_alone(slurm: Slurm, commands: Commands) -> None:
    job = await the_job(commands, Ranks(slurm).start("-N2", "-w", "n[1-2]"))
    comment(slurm, job, "ticket 4711 gpuwarden:ckpt@n1@1")
    outcome = await mark(commands, job, "n1", time.time())
    assert outcome.result is Marking.FOREIGN
    assert "ticket 4711" in outcome.text
    assert await comment_of(commands, job) == "ticket 4711 gpuwarden:ckpt@n1@1"


async def test_an_unused_mark_is_removed_and_nothing_that_has_replaced_it(slurm: Slurm, commands: Commands) -> None:
    job = await the_job(commands, Ranks(slurm).start("-N2", "-w", "n[1-2]"))
    outcome = await mark(commands, job, "n1", time.time())
    await unmark(commands, job, outcome.mark)
    assert await comment_of(commands, job) == ""
    for present in ("ticket 4711", "gpuwarden:ckpt@n2@1"):
        comment(slurm, job, present)
        await unmark(commands, job, outcome.mark)
        assert await comment_of(commands, job) == present


@pytest.mark.slow
@pytest.mark.parametrize("withdrawn", [True, False])
async def test_a_job_that_is_not_signalled_as_a_whole_after_all_keeps_no_mark_and_other_nodes_do_not_watch(
    slurm: Slurm, commands: Commands, withdrawn: bool
) -> None:
    """The end was called off in the last moment, or no step of the job runs."""
    ranks = Ranks(slurm)
    number = (
        ranks.start("-N2", "-w", "n[1-2]") if withdrawn else ranks.start("-N2", "-w", "n[1-2]", ranks=1, batch="{rank}")
    )
    job = await the_job(commands, number)
    scan = SlurmJobScan(SlurmClient(node="n1", conf=slurm.conf, timeout=60.0), slurm.folder / "signals")

    async def sending() -> bool:
        return not withdrawn

    delivery = Delivery(way=Way.JOB_WIDE, signal="USR1", text="", receivers=(Aim(process(1), "USR1"),))
    result = await signal_through_slurm(scan, SignalJob(local(job.id), delivery, job), sending, None, time.time())
    await scan.close()
    assert result.result is Sent.UNSENT
    assert "gpuwarden" not in await comment_of(commands, job)
    assert sum(count["USR1"] for count in ranks.received(job.id).values()) == 0


@pytest.mark.slow
async def test_a_job_is_signalled_as_a_whole_while_a_drain_and_a_read_of_the_node_hang(
    slurm: Slurm, commands: Commands, tmp_path: Path
) -> None:
    """Both hold a turn for longer than the machine has; the controller answers the others."""
    ranks = Ranks(slurm)
    job = await the_job(commands, ranks.start("-N2", "-w", "n[1-2]"))
    programs = HangingCommands(tmp_path / "commands")
    programs.hang("^sinfo|^scontrol update NodeName")
    client = SlurmClient(node="n1", conf=slurm.conf, folder=programs.folder, timeout=600.0)
    routine = [
        asyncio.create_task(client.routine.change("cannot drain", "scontrol", "update", "NodeName=n3", "State=DRAIN")),
        asyncio.create_task(read_node(client.routine, "n1")),
    ]
    async with asyncio.timeout(PATIENCE):
        while len(programs.hanging) < 2:
            await asyncio.sleep(0.01)
        delivery = Delivery(way=Way.JOB_WIDE, signal="USR1", text="", receivers=(Aim(process(1), "USR1"),))
        step = SignalJob(local(job.id), delivery, job)
        delivered = await signal_through_slurm(
            SlurmJobScan(client, tmp_path / "signals"), step, _goes_on, None, time.time()
        )
    assert (delivered.result, delivered.text) == (Sent.SENT, f"SIGUSR1 to step {job.called}.0")
    ranks.wait_received(job.id, "USR1")
    assert not any(task.done() for task in routine)
    for task in routine:
        task.cancel()
    await asyncio.gather(*routine, return_exceptions=True)
    await client.close()


@pytest.mark.slow
async def test_of_a_job_that_another_node_signals_only_steps_that_run_there_too_are_signalled_by_it(
    slurm: Slurm, commands: Commands, tmp_path: Path
) -> None:
    """Otherwise a farm of steps of one node each would get no signal but on the node that was first."""
    job = await the_job(commands, Ranks(slurm).start("-N2", "-w", "n[1-2]"))
    comment(slurm, job, f"gpuwarden:ckpt@n2@{time.time():.0f}")
    steps = [process(n, step=str(n), step_nodes=nodes) for n, nodes in ((1, "n[1-2]"), (2, "n1"))]
    delivery = Delivery(
        way=Way.JOB_WIDE, signal="USR1", text="", receivers=tuple(Aim(receiver, "USR1") for receiver in steps)
    )
    end = announced()
    rig = ExecutorRig(slurm, tmp_path, now=Stamp(1_001.0, time.time()))
    (tmp_path / "run").mkdir()
    rig.announces(end)
    step = SignalJob(local(job.id, *steps), delivery, job)
    rig.executor.write_down(end, step)
    await rig.executor.signal([(end, step)])
    await asyncio.gather(*rig.executor.running)
    await rig.client.close()
    job_state = rig.state.evacuations[id_of(end)].jobs[f"slurm/{job.id}"]
    assert {pid for pid, _ in job_state.signalled} == {1}
    assert (job_state.result, job_state.wide, job_state.unsure) == (Sent.WATCHED, False, frozenset())


async def _goes_on() -> bool:
    return True


@pytest.mark.slow
async def test_a_mark_counts_for_ten_minutes_and_for_one_run_of_the_job(slurm: Slurm, commands: Commands) -> None:
    job = await the_job(commands, Ranks(slurm).start("-N2", "-w", "n[1-2]"))
    for present in (
        f"gpuwarden:ckpt@n2@{job.started - 1:.0f}",
        f"gpuwarden:ckpt@n2@{time.time() - MARK_STANDS - 9:.0f}",
    ):
        comment(slurm, job, present)
        assert (await mark(commands, job, "n1", time.time())).result is Marking.MARKED
        assert (await comment_of(commands, job)).startswith("gpuwarden:ckpt@n1@")
    taken = await mark(commands, job, "n2", time.time())
    assert (taken.result, taken.node) == (Marking.TAKEN, "n1")
    behind = await mark(commands, job, "n1", job.started - 60)  # this node's clock is behind the controller's
    assert behind.result is Marking.MARKED
    assert (await mark(commands, job, "n2", time.time())).result is Marking.TAKEN


@pytest.mark.slow
async def test_the_task_of_an_array_is_marked_alone(slurm: Slurm, commands: Commands) -> None:
    """Its last task has the number of the whole array."""
    array = slurm.submit("sleep 300", "--array=0-1", "-w", "n1")
    slurm.wait(lambda: slurm.command("squeue", "-h", "--states=R").count("\n") == 2, "both tasks")
    job = await the_job(commands, array)
    assert (await mark(commands, job, "n1", time.time())).result is Marking.MARKED
    output = slurm.command("squeue", "-h", "--Format=JobArrayID:0 ,admin_comment:0").splitlines()
    assert sum("gpuwarden" in line for line in output) == 1
    assert any(line.startswith(f"{job.called} gpuwarden:ckpt@n1@") for line in output)


@pytest.mark.slow
async def test_a_job_that_has_ended_or_restarted_is_not_marked(slurm: Slurm, commands: Commands) -> None:
    job = await the_job(commands, slurm_job(slurm))
    slurm.scontrol("requeue", str(job.id))
    slurm.wait(lambda: slurm.job(job.id).get("Restarts") == "1", "it to be requeued")
    assert (await mark(commands, job, "n1", time.time())).result is Marking.GONE
    slurm.command("scancel", str(job.id))
    slurm.wait(lambda: slurm.job_state(job.id) == "CANCELLED", "its end")
    assert (await mark(commands, job, "n1", time.time())).result is Marking.GONE
    assert slurm.job(job.id).get("AdminComment") is None


def slurm_job(slurm: Slurm) -> int:
    job = slurm.submit("sleep 300", "-w", "n1")
    slurm.wait(lambda: slurm.job_state(job) == "RUNNING", "the job")
    return job
