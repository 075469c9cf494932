"""Who is found in the jobs of a real Slurm, which gives their processes no control groups here: slurmd's list shows it."""

from __future__ import annotations

import pwd
from collections import Counter
from pathlib import Path

import pytest

from gpuwarden_collectors.receivers.facts import LocalJob, Role
from gpuwarden_collectors.receivers.reader import ReceiversReader
from gpuwarden_collectors.slurm.departing_text import listed_pids
from support.slurm import SLURM_PARTS, Slurm

pytestmark = SLURM_PARTS

TRAINER = """perl -e '$SIG{USR1} = sub {}; open F, ">", "RUNS.$ENV{SLURM_PROCID}"; close F; sleep 1 while 1'"""


@pytest.mark.slow
def test_the_ranks_of_a_job_are_found_below_its_wrappers(slurm: Slurm, tmp_path: Path) -> None:
    """sbatch, srun, a wrapper for each task, and the trainer in it; and a second step whose tasks are the trainers themselves."""
    runs = slurm.folder / "jobs" / tmp_path.name
    trainer = TRAINER.replace("RUNS", f"{runs}.$ENV{{SLURM_STEP_ID}}")
    script = runs.with_suffix(".sh")
    script.write_text(f"#!/bin/sh\n{trainer} &\nwait\n")
    direct = runs.with_suffix(".pl")
    direct.write_text("#!/usr/bin/perl\n" + trainer.removeprefix("perl -e '").removesuffix("'"))
    for file in (script, direct):
        file.chmod(0o755)
    steps = f"export GPUWARDEN_SIGNAL=USR1; srun --overlap -n2 {script} & srun --overlap -n2 {direct} & wait"
    job = slurm.submit(steps, "--nodelist=n1", "--ntasks=2")
    slurm.wait(lambda: len(list(runs.parent.glob(f"{runs.name}.[01].[01]"))) == 4, "four ranks")

    local_job = read(slurm, job)
    roles = Counter(
        (process.step, process.role, process.leader) for process in local_job.processes if process.name != "sleep"
    )
    wrapped, alone = ("0", "1") if ("0", Role.SHELL, True) in roles else ("1", "0")
    assert roles[(wrapped, Role.SHELL, True)] == 2
    assert roles[(wrapped, Role.RANK, False)] == 2
    assert roles[(alone, Role.RANK, True)] == 2
    assert roles[("batch", Role.SHELL, True)] == 1
    ranks = [process for process in local_job.processes if process.role is Role.RANK]
    assert Counter(process.rank for process in ranks) == {0: 2, 1: 2}
    assert {process.step_nodes for process in ranks} == {"n1"}
    assert all(
        (process.declared, process.uid) == ("USR1", local_job.uid) and "USR1" in process.catches for process in ranks
    )
    assert (local_job.uid, local_job.folder) == (pwd.getpwnam("nobody").pw_uid, str(job))
    for process in local_job.processes:
        parent = Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2].split()[1]
        assert process.leader is (Path(f"/proc/{parent}/comm").read_text() == "slurmstepd\n"), process


def read(slurm: Slurm, job: int) -> LocalJob:
    listed = listed_pids(slurm.scontrol("listpids", "*", "n1"))
    return next(local_job for local_job in ReceiversReader(Path("/proc")).read((), listed) if local_job.id == str(job))
