"""The jobs of a node that is about to go, read from a real Slurm."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gpuwarden_collectors.slurm.client import Commands, SlurmClient
from gpuwarden_collectors.slurm.departing import listpids, read_job, read_jobs, read_steps, signals_whole_trees
from gpuwarden_collectors.slurm.errors import SlurmError, UnknownNode
from support.slurm import CONTROLLER, SLURM_PARTS, Slurm
from support.slurm_ranks import Ranks

pytestmark = SLURM_PARTS

COMMENT = "gpuwarden:signal=USR1 | \x1f\n7|running"


@pytest.fixture
async def commands(slurm: Slurm) -> AsyncIterator[Commands]:
    commands = SlurmClient(conf=slurm.conf, timeout=60.0).routine
    yield commands
    await commands.client.close()


@pytest.mark.slow
async def test_each_node_gets_its_jobs_and_their_processes_with_one_call_each(slurm: Slurm, commands: Commands) -> None:
    ranks = Ranks(slurm)
    array = slurm.submit("sleep 300", "--array=0-1", "-w", "n3", "--no-requeue")
    number = ranks.start("-N2", "-w", "n[1-2]", f"--comment={COMMENT}", "--job-name=a|b\nc")
    slurm.scontrol("update", f"JobId={number}", "AdminComment=ticket 4711")
    slurm.wait(lambda: slurm.command("squeue", "-h", "--states=R").count("gpu") == 3, "all jobs")
    before = commands.client.calls
    job = (await read_jobs(commands, "n1"))[number]
    assert commands.client.calls == before + 1
    assert (job.id, job.called, job.uid, job.state) == (number, str(number), 65534, "running")
    assert (job.nodes, job.node_count, job.batch) == ("n[1-2]", 2, True)
    assert (job.requeue, job.restarts, job.pinned) == (True, 0, "n[1-2]")
    assert job.started > 0
    assert (job.comment, job.admin_comment, job.name) == ("gpuwarden:signal=USR1 |   7|running", "ticket 4711", "a|b c")
    assert await read_jobs(commands, "n2") == {number: job}
    assert await read_job(commands, job) == job
    tasks = await read_jobs(commands, "n3")
    assert {task.called for task in tasks.values()} == {f"{array}_0", f"{array}_1"}
    assert not any(task.requeue for task in tasks.values())
    mine, theirs = await listpids(commands, "n1"), await listpids(commands, "n2")
    assert {(listed.step, listed.rank) for listed in mine.values() if listed.local is not None} == {
        ("batch", 0),
        ("0", 0),
    }
    assert {(listed.job, listed.step, listed.rank) for listed in theirs.values() if listed.local is not None} == {
        (number, "0", 1)
    }
    assert await signals_whole_trees(commands, slurm.conf) is True
    slurm.pause(CONTROLLER)
    try:
        now = await listpids(commands, "n1")
        assert {pid: listed for pid, listed in now.items() if listed.local is not None} == {
            pid: listed for pid, listed in mine.items() if listed.local is not None
        }, "children of a rank come and go"
    finally:
        slurm.resume(CONTROLLER)


@pytest.mark.slow
async def test_the_steps_of_a_job_are_read_from_all_of_its_nodes_until_they_have_ended(
    slurm: Slurm, commands: Commands
) -> None:
    array = slurm.submit("srun sleep 300", "--array=0-1", "-w", "n3")
    script = "srun -N1 -n1 -w n2 --exact sleep 300 & srun -N1 -n1 -w n1 --exact sleep 300 & wait; sleep 300"
    number = slurm.submit(script, "-N2", "-w", "n[1-2]")
    slurm.wait(lambda: slurm.command("squeue", "--steps", "-h").count("sleep") == 4, "all steps")
    job = (await read_jobs(commands, "n1"))[number]
    assert set(await read_steps(commands, job)) == {"0", "1", "batch"}
    for task in (await read_jobs(commands, "n3")).values():
        assert task.called.startswith(f"{array}_")
        assert set(await read_steps(commands, task)) == {"0", "batch"}
    slurm.command("scancel", f"{number}.0", f"{number}.1")
    slurm.wait(lambda: slurm.command("squeue", "--steps", "-h").count("sleep") == 2, "its steps to end")
    assert set(await read_steps(commands, job)) == {"batch"}
    slurm.scontrol("requeuehold", str(number))
    slurm.wait(lambda: f"{number}." not in slurm.command("squeue", "--steps", "-h"), "its script to end, too")
    assert slurm.job_state(number) != "RUNNING"
    assert await read_steps(commands, job) == ()
    slurm.stop(CONTROLLER)
    with pytest.raises(SlurmError):
        await read_steps(commands, job)


@pytest.mark.slow
async def test_missing_data_is_empty_or_an_error(slurm: Slurm, commands: Commands) -> None:
    assert await read_jobs(commands, "n1") == {}
    assert await listpids(commands, "n1") == {}
    with pytest.raises(UnknownNode):
        await read_jobs(commands, "n9")
    number = slurm.submit("sleep 300", "-w", "n1")
    slurm.wait(lambda: slurm.job_state(number) == "RUNNING", "the job")
    job = (await read_jobs(commands, "n1"))[number]
    slurm.command("scancel", str(number))
    slurm.wait(lambda: slurm.job_state(number) == "CANCELLED", "its end")
    slurm.wait(lambda: "COMPLETING" not in slurm.command("squeue", "-h", "--Format=State"), "its processes")
    assert await read_job(commands, job) is None
    assert await read_jobs(commands, "n1") == {}
