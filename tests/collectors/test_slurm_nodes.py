"""Nodes and partitions as a real controller reports them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpuwarden.policy.model import Settings
from gpuwarden_collectors.slurm.client import Commands, SlurmClient
from gpuwarden_collectors.slurm.errors import Refused, UnknownNode, Unreachable
from gpuwarden_collectors.slurm.jobs_controller import HOUR, Controller
from gpuwarden_collectors.slurm.nodes import find_name, jobs_on, read_node, read_partitions, runs_jobs
from gpuwarden_collectors.slurm.settings import read_partition_settings
from support.slurm import MUNGE, SLURM_PARTS, Slurm

pytestmark = SLURM_PARTS


@pytest.fixture
def commands(slurm: Slurm) -> Commands:
    return SlurmClient(conf=slurm.conf, timeout=60.0).routine


async def test_a_drain_is_read_with_its_whole_reason_and_its_time(slurm: Slurm, commands: Commands) -> None:
    reason = 'gpuwarden: failure "q" | ; = [a@b] ü ' + 100 * "long " + "end"
    slurm.drain("n1", reason)
    node = await read_node(commands, "n1")
    assert (node.state, node.reason) == ("idle+drain", reason)
    written = (slurm.folder / "slurmctld.log").stat().st_mtime
    assert node.reason_at is not None
    assert abs(node.reason_at - written) < 60.0


async def test_a_node_in_no_partition_is_read(slurm: Slurm, commands: Commands) -> None:
    slurm.scontrol("update", "PartitionName=gpu", "Nodes=n[2-3]")
    try:
        slurm.drain("n1", "two\nlines")
        node = await read_node(commands, "n1")
    finally:
        slurm.scontrol("update", "PartitionName=gpu", "Nodes=n[1-3]")
    assert (node.state, node.reason, node.partitions, node.has_gpu) == ("idle+drain", "two\nlines", (), True)


async def test_names_that_slurm_does_not_know_are_an_error(slurm: Slurm, commands: Commands) -> None:
    with pytest.raises(UnknownNode, match=r"set slurm\.node"):
        await read_node(commands, "n9")
    with pytest.raises(UnknownNode, match=r"set slurm\.node"):
        await find_name(commands, "nohost")
    with pytest.raises(Refused, match="n1, n2, n3"):
        await find_name(commands, "localhost")
    assert await read_partitions(commands, ["nope"]) == []


async def test_a_partition_is_read_with_its_members(slurm: Slurm, commands: Commands) -> None:
    slurm.drain("n2", "gpuwarden: failure gpu=1")
    (partition,) = await read_partitions(commands, ["gpu", "nope"])
    drained = {node.name: node.reason for node in partition.members if "drain" in node.flags}
    assert drained == {"n2": "gpuwarden: failure gpu=1"}
    assert [(node.name, node.has_gpu) for node in partition.members] == [("n1", True), ("n2", True), ("n3", True)]
    assert [
        (gpu_partition.name, gpu_partition.total_nodes) for gpu_partition in await read_partition_settings(commands)
    ] == [("gpu", 3)]


@pytest.mark.slow
async def test_without_munge_or_configuration_slurm_is_unreachable(slurm: Slurm, commands: Commands) -> None:
    slurm.stop(MUNGE)
    with pytest.raises(Unreachable, match="systemctl status munge"):
        await read_node(commands, "n1")
    nowhere = SlurmClient(conf=Path("/nonexistent/slurm.conf"), timeout=1.0).routine
    with pytest.raises(Unreachable):
        await read_node(nowhere, "n1")


async def test_a_munged_that_hangs_is_named_beside_the_controller(slurm: Slurm) -> None:
    """Slurm's commands hang with it, `scontrol ping` too. They do so for a minute if it was killed, and left its socket."""
    slurm.pause(MUNGE)
    commands = SlurmClient(conf=slurm.conf, inherited=slurm.environment, timeout=1.0).routine
    with pytest.raises(Unreachable, match="'munge -n'"):
        await read_node(commands, "n1")


async def test_who_may_not_drain_is_refused(slurm: Slurm) -> None:
    slurm.folder.joinpath("as-nobody").mkdir(exist_ok=True)
    script = slurm.folder / "as-nobody/scontrol"
    script.write_text('#!/bin/sh\nexec runuser -u nobody -- /usr/bin/scontrol "$@"\n')
    script.chmod(0o755)
    commands = SlurmClient(conf=slurm.conf, folder=script.parent, timeout=60.0).routine
    with pytest.raises(Refused, match="AdminLevel=Administrator"):
        await commands.change("cannot drain n1", "scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=x")
    assert slurm.state("n1") == {"IDLE"}


def questions(slurm: Slurm) -> int:
    """Return how many requests about nodes, partitions and jobs the controller has answered."""
    statistics = (
        slurm.command("sdiag").partition("Remote Procedure Call statistics by message type")[2].partition("\n\n")[0]
    )
    counts = dict(re.findall(r"(REQUEST_\w*INFO\w*) .*count:(\d+)", statistics))
    return sum(int(count) for name, count in counts.items() if name != "REQUEST_STATS_INFO")


async def test_a_node_that_is_well_costs_the_controller_twelve_requests_an_hour(
    slurm: Slurm, commands: Commands
) -> None:
    """The limit covers the reads of any hour, and all that may be asked about jobs. The size of its partition is read once a day on top."""
    before = questions(slurm)
    await read_node(commands, "n1")
    read = questions(slurm) - before
    await read_partition_settings(commands)
    size = questions(slurm) - before - read
    controller = Controller("n1", lambda words: slurm.command(*words), questions=2)
    job = slurm.submit("sleep 600", "-w", "n1", "--gres=gpu:1")
    slurm.wait(lambda: slurm.job_state(job) == "RUNNING", "the job to run")
    before = questions(slurm)
    assert job in (controller.jobs(0.0) or {})
    assert controller.gpus(job, 0.0) == (0,)
    jobs = questions(slurm) - before
    assert min(read, size, jobs) > 0
    assert HOUR / Settings().look_every * read + jobs <= 12.0


async def test_a_job_that_its_user_has_stopped_has_its_node_still(slurm: Slurm, commands: Commands) -> None:
    """After `scancel --signal=STOP` its state is STOPPED: what asks for running jobs alone does not get it."""
    job = slurm.submit("echo here; sleep 600", "-w", "n1", "--gres=gpu:1")
    slurm.wait(lambda: slurm.output(job), "its script to run, since without a step the signal is lost")
    slurm.command("scancel", "--signal=STOP", str(job))
    slurm.wait(lambda: slurm.job_state(job) == "STOPPED", "it to be stopped")
    assert await runs_jobs(commands, "n1")
    assert [left.id for left in await jobs_on(commands, "n1")] == [job]
    assert list(Controller("n1", lambda words: slurm.command(*words), questions=2).jobs(0.0) or {}) == [job]
