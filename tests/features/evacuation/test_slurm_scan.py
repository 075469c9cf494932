"""The jobs of a node that is about to end, read from a real Slurm of which one command hangs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpuwarden.features.evacuation.slurm.job_scan import SlurmJobScan
from gpuwarden_collectors.slurm.client import SlurmClient
from support.slurm import SLURM_PARTS, Slurm
from support.slurm_hanging import HangingCommands

pytestmark = SLURM_PARTS


@pytest.fixture
def commands(tmp_path: Path) -> HangingCommands:
    return HangingCommands(tmp_path / "commands")


@pytest.fixture
async def scan(slurm: Slurm, commands: HangingCommands, tmp_path: Path) -> AsyncIterator[SlurmJobScan]:
    client = SlurmClient(conf=slurm.conf, inherited=slurm.environment, node="n1", folder=commands.folder)
    scan = SlurmJobScan(client, tmp_path / "signals", slurm.conf)
    yield scan
    await scan.close()
    await client.close()


async def test_the_jobs_are_known_while_the_configuration_waits_for_a_backup_controller(
    slurm: Slurm, commands: HangingCommands, scan: SlurmJobScan
) -> None:
    """The command `scontrol show config` pings each controller and may wait for all the time that is left."""
    job = slurm.submit("sleep 300", "-w", "n1")
    slurm.wait(lambda: slurm.job_state(job) == "RUNNING", "the job to run")
    commands.hold("show config")
    jobs = await scan.read()
    assert (jobs.answered, jobs.fresh, list(jobs.jobs), jobs.trees, jobs.error) == (True, True, [job], None, "")
    commands.release()
    while (await scan.read()).trees is None:
        scan.ask_again()
    assert (await scan.read()).trees is True
    assert commands.hanging == ["scontrol show config"]
