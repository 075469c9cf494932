"""A heterogeneous job is requeued only where Slurm does not cancel it for that."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gpuwarden.features.evacuation.slurm.requeue import Requeueing, requeue
from gpuwarden_collectors.slurm.client import SlurmClient
from gpuwarden_collectors.slurm.departing import read_jobs
from support.shown_node import ShownNode
from support.slurm import SLURM_PARTS, Slurm

OWN_REASON = "gpuwarden: termination boot=1b4e28ba instance=i-0af01c23"
_SQUEUE = r"""
token=$(echo "$*" | sed 's/.*JobID:0|\([0-9a-f]*\)|.*/\1/')
state=RUNNING restarts=0
[ ! -e requeued ] || { state=PENDING; restarts=1; }
for value in 9 9+0 1001 $state n1 1 gpu 1 1 $restarts 1795316951 '' '' train; do printf '%s|%s|' "$value" $token; done
printf '|%s.\n' $token
"""


class ShownPart(ShownNode):
    """A drained node whose job is the first part of a heterogeneous one, in a Slurm of this version. `answers` False: it does not show its
    configuration.
    """

    def __init__(self, folder: Path, version: str, *, answers: bool = True) -> None:
        super().__init__(folder, "IDLE+DRAIN", OWN_REASON)
        config = f"echo SLURM_VERSION = {version}" if answers else "exit 1"
        scontrol = f"""
case "$*" in
  *"show config"*) {config} ;;
  --version) echo slurm-wlm {version} ;;
  *requeue*) touch requeued ;;
esac
"""
        for name, script in (("squeue", _SQUEUE), ("scontrol", scontrol)):
            (folder / name).write_text(f"#!/bin/sh\ncd {folder}\n{script}")
        self.requeued = folder / "requeued"


@pytest.mark.parametrize(("version", "is_requeued"), [("22.05.8", True), ("25.05.3", True), ("25.11.7", False)])
async def test_a_part_is_left_to_slurm_where_a_requeue_would_cancel_the_job(
    tmp_path: Path, version: str, *, is_requeued: bool
) -> None:
    """Slurm requeues it by itself once the node that runs its script is gone."""
    shown = ShownPart(tmp_path, version)
    (job,) = (await read_jobs(shown.commands, "n1")).values()
    assert job.part
    outcome = await requeue(shown.commands, job, "n1", settles=0.0)
    assert shown.requeued.exists() == is_requeued
    if not is_requeued:
        assert outcome.result is Requeueing.REFUSED
        assert f"Slurm {version} cancels a heterogeneous job" in outcome.text


@pytest.mark.parametrize(("version", "is_requeued"), [("22.05.8", True), ("25.11.7", False)])
async def test_beside_a_controller_that_does_not_show_its_configuration_this_host_s_version_counts(
    tmp_path: Path, version: str, *, is_requeued: bool
) -> None:
    """A backup controller that hangs delays the configuration by MessageTimeout, which may be longer than `slurm.timeout`."""
    shown = ShownPart(tmp_path, version, answers=False)
    (job,) = (await read_jobs(shown.commands, "n1")).values()
    outcome = await requeue(shown.commands, job, "n1", settles=0.0)
    assert shown.requeued.exists() == is_requeued
    assert (outcome.result is Requeueing.REFUSED) == (not is_requeued)


class TestInSlurm:
    pytestmark = SLURM_PARTS

    @pytest.mark.slow
    async def test_no_heterogeneous_job_is_cancelled_by_its_requeue(self, slurm: Slurm) -> None:
        script = slurm.folder / "jobs/parts.sh"
        script.write_text(
            "#!/bin/sh\n#SBATCH --requeue -n1 --exclusive --output=/dev/null\n#SBATCH hetjob\n#SBATCH -n1 --exclusive\n"
            "srun --het-group=0,1 sleep 300\n"
        )
        number = int(slurm.command("sbatch", "--parsable", "--chdir=/tmp", str(script), user="nobody"))
        slurm.wait(lambda: "Name=sleep" in slurm.scontrol("show", "step"), "its step")
        await asyncio.sleep(1.0)  # its srun has to know that
        commands = SlurmClient(conf=slurm.conf, timeout=60.0).routine
        node = dict(line.split() for line in slurm.command("squeue", "-h", "--format=%i %N").splitlines())[
            f"{number}+0"
        ]
        (job,) = (await read_jobs(commands, node)).values()
        slurm.drain(node, OWN_REASON)
        outcome = await requeue(commands, job, node)
        assert outcome.result in (Requeueing.REQUEUED, Requeueing.WAITS, Requeueing.REFUSED)
        await asyncio.sleep(2.0)
        assert "CANCELLED" not in slurm.command("squeue", "-h", "--states=all", f"--jobs={number}", "--format=%T")
