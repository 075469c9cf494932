"""Who tests now, as a real Slurm shows it: running jobs of the name, and marks of nodes."""

from __future__ import annotations

import asyncio
import time

import pytest

from gpuwarden.features.active_test.at_once import TEST
from gpuwarden.features.active_test.testers import JOB_NAME, FleetTests, read_testers
from gpuwarden.policy.fleet_marks import LASTS_MOST, Mark
from gpuwarden_collectors.slurm.client import SlurmClient
from support.slurm import SLURM_PARTS, Slurm

pytestmark = SLURM_PARTS


def counted(slurm: Slurm, later: float = 0.0) -> FleetTests:
    """Count the tests as a daemon does that many seconds from now."""

    async def read() -> FleetTests:
        client = SlurmClient(conf=slurm.conf, inherited=slurm.environment)
        try:
            return await read_testers(client.routine, "root", time.time() + later)
        finally:
            await client.close()

    return asyncio.run(read())


@pytest.mark.slow
def test_jobs_that_run_and_marks_are_counted_pending_jobs_apart_and_users_jobs_of_that_name_not_at_all(
    slurm: Slurm,
) -> None:
    now = time.time()
    assert counted(slurm) == FleetTests((), 0)
    slurm.scontrol("update", "NodeName=n1", f"Comment={Mark(TEST, now, now + 600)}")
    slurm.scontrol("update", "NodeName=n2", f"Extra={Mark(TEST, now - 500, now - 400)}")
    slurm.submit("sleep 300", "-w", "n3", "--exclusive", f"--job-name={JOB_NAME}", user="root")
    slurm.submit("sleep 300", "-w", "n3", "--exclusive", f"--job-name={JOB_NAME}", user="root")
    slurm.submit("sleep 300", "-w", "n2", "--job-name=training")
    users = slurm.submit("sleep 300", "-w", "n2", f"--job-name={JOB_NAME}")
    slurm.submit("sleep 300", "-w", "n3", "--exclusive", f"--job-name={JOB_NAME}")
    try:
        slurm.wait(lambda: len(counted(slurm).held) == 2, "the job to run")
        slurm.wait(lambda: slurm.job_state(users) == "RUNNING", "a user's job of that name to run")
        fleet_tests = counted(slurm)
        assert sorted(held.node for held in fleet_tests.held) == ["n1", "n3"]
        assert all(now - 1 <= held.since <= time.time() + 1 for held in fleet_tests.held)
        assert fleet_tests.pending == 1
        assert [held.node for held in counted(slurm, LASTS_MOST - 600).held] == ["n3"]
        assert counted(slurm, LASTS_MOST + 120).held == (), "a job that never finishes completing holds nobody up"
    finally:
        for node in ("n1", "n2"):
            slurm.scontrol("update", f"NodeName={node}", "Comment=", "Extra=")
