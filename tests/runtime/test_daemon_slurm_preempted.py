"""A user's job is preempted with a GraceTime on a node that gpuwarden watches: it saves, and nothing is found or drained for that."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.job_world import EXAMPLES, JOB
from support.slurm import PATIENCE, SLURM, Slurm, require_slurm, running
from support.slurm_hosts import SlurmHost, excluded_by
from support.slurm_reconciler import reasons_written

pytestmark = [*SLURM, pytest.mark.slow]


@pytest.fixture
def mode(request: pytest.FixtureRequest) -> str:
    """Return what preemption does to a job of `low`."""
    return str(request.param)


@pytest.fixture
def preempting(mode: str) -> Iterator[Slurm]:
    """Run a Slurm of one node, where `high` preempts `low`, with half a minute of grace."""
    require_slurm()
    more = f"PreemptType=preempt/partition_prio\nPreemptMode={mode}"
    partitions = (
        f"PartitionName=low Nodes=n1 Default=YES PriorityTier=1 PreemptMode={mode} GraceTime=30",
        "PartitionName=high Nodes=n1 PriorityTier=2 PreemptMode=OFF",
    )
    with (
        tempfile.TemporaryDirectory(prefix="gw-slurm-", ignore_cleanup_errors=True) as folder,
        running(Slurm(Path(folder), nodes=1, more=more, partitions=partitions)) as slurm,
    ):
        yield slurm


class Training:
    """The training of the examples with its batch script, in partition `low`."""

    def __init__(self, slurm: Slurm, folder: Path) -> None:
        self.slurm, self._folder = slurm, folder
        (folder / "python").write_text(f'#!/bin/sh\nexec {sys.executable} -u "$@"\n')
        (folder / "python").chmod(0o755)
        environment = {**slurm.environment, "PYTHONPATH": str(JOB), "PYTHONDONTWRITEBYTECODE": "1", "PAUSE": "0.02"}
        environment |= {"PATH": f"{folder}:{environment['PATH']}", "CHECKPOINTS": str(folder / "saved")}
        words = ["sbatch", "--parsable", f"--output={folder}/out", "slurm/train.sbatch"]
        done = subprocess.run(
            words, cwd=EXAMPLES, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=True
        )
        self.job = int(done.stdout)
        slurm.wait(lambda: self.begun() and (folder / "saved/latest").exists(), "the job to train, and to save once")

    def begun(self) -> list[int]:
        """Return the step at which each of its runs began."""
        text = (self._folder / "out").read_text() if (self._folder / "out").exists() else ""
        return [int(step) for step in re.findall(r"begins at step (\d+)", text)]


@pytest.mark.parametrize("mode", ["REQUEUE"], indirect=True)
def test_a_preempted_job_saves_in_its_grace_and_goes_on_after_it(preempting: Slurm, tmp_path: Path) -> None:
    before = len(preempting.log())
    host = SlurmHost(tmp_path, preempting)
    with host.acting() as daemon:
        daemon.wait_status("healthy")
        training = Training(preempting, tmp_path)
        urgent = preempting.submit("true", "--partition=high", "--exclusive", "-w", "n1")
        preempting.wait(lambda: preempting.job_state(urgent) == "COMPLETED", "the other job to run")
        preempting.wait(lambda: len(training.begun()) == 2, "the training to go on")
        assert training.begun()[1] > 50, "it saved in its grace"
        daemon.wait_passes(5)
        assert (daemon.heartbeat()["status"], excluded_by(daemon)) == ("healthy", [])
    assert reasons_written(preempting, since=before) == []


@pytest.mark.parametrize("mode", ["CANCEL"], indirect=True)
def test_a_job_that_preemption_cancels_is_no_fault_of_its_node(preempting: Slurm, tmp_path: Path) -> None:
    before = len(preempting.log())
    with SlurmHost(tmp_path, preempting).acting() as daemon:
        daemon.wait_status("healthy")
        cancelled = preempting.submit("sleep 600", "--partition=low", "--exclusive", "-w", "n1")
        preempting.wait(lambda: preempting.job_state(cancelled) == "RUNNING", "the job to run")
        urgent = preempting.submit("true", "--partition=high", "--exclusive", "-w", "n1")
        preempting.wait(lambda: preempting.job_state(urgent) == "COMPLETED", "the other job to run")
        assert preempting.job_state(cancelled) == "PREEMPTED"
        daemon.wait_passes(5)
        assert (daemon.heartbeat()["status"], excluded_by(daemon)) == ("healthy", [])
    assert reasons_written(preempting, since=before) == []
