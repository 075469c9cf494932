"""The finding about jobs that hold GPUs for nothing."""

from __future__ import annotations

from collections.abc import Mapping

from gpuwarden.health.condition import NO_DRIVER, Condition, W
from gpuwarden.health.model import Advice

CONDITIONS = (
    Condition(
        code="job_idle", scope="job", severity=W, advice=Advice.RESTART_APP, fall=60, shadow=True,
        title="A job holds GPUs and has no process on them",
        why="For 30 minutes a job of Slurm has had GPUs of this node without a process of it on any of them, and none of them was busy. About the "
        "job and never a reason to drain: an interactive job whose user is away, or a script that waits. In shadow in this release.",
        source="own choice: 30 minutes; PrincetonUniversity/job_defense_shield (jobs that hold idle GPUs are warned, then cancelled)",
        depends_on=NO_DRIVER,
    ),
)  # fmt: skip

TO_DO: Mapping[str, str] = {
    "job_idle": "Ask the job's owner, or end it: `scancel JOB`. No reason to drain the node.",
}

RUNBOOKS: Mapping[str, str] = {"job_idle": "gpu"}
