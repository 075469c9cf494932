"""The batch script of the examples on a real Slurm: signalled, saved, requeued by itself, resumed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.job_world import EXAMPLES, JOB
from support.slurm import PATIENCE, SLURM, Slurm

pytestmark = SLURM


@pytest.mark.slow
def test_a_job_that_is_signalled_before_its_time_limit_goes_on_after_a_requeue_where_it_was(
    slurm: Slurm, tmp_path: Path
) -> None:
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {sys.executable} -u "$@"\n')
    (tmp_path / "python").chmod(0o755)
    environment = {**slurm.environment, "PYTHONPATH": str(JOB), "PYTHONDONTWRITEBYTECODE": "1", "PAUSE": "0.02"}
    environment |= {"PATH": f"{tmp_path}:{environment['PATH']}", "CHECKPOINTS": str(tmp_path / "saved")}
    words = ["sbatch", "--parsable", f"--output={tmp_path}/out", "slurm/train.sbatch"]
    job = subprocess.run(
        words, cwd=EXAMPLES, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=True
    ).stdout.strip()

    def begun() -> list[int]:
        text = (tmp_path / "out").read_text() if (tmp_path / "out").exists() else ""
        return [int(step) for step in re.findall(r"begins at step (\d+)", text)]

    slurm.wait(lambda: begun() and (tmp_path / "saved/latest").exists(), "the job trains and has saved once")
    slurm.command("scancel", "--batch", "--signal=USR1", job)
    slurm.wait(lambda: slurm.job(int(job)).get("Restarts") == "1", "it has requeued itself")
    slurm.wait(lambda: len(begun()) == 2, "it runs again")
    assert begun()[0] == 0
    assert begun()[1] > 50
