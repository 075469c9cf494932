"""The conditions about jobs that stall, and what to do about each."""

from __future__ import annotations

from collections.abc import Mapping

from gpuwarden.health.condition import NO_DRIVER, Condition, W
from gpuwarden.health.model import Advice

CONDITIONS = (
    Condition(
        code="job_hung", scope="job", severity=W, advice=Advice.RESTART_APP, fall=60,
        title="A job holds the whole node and does nothing",
        why="The unambiguous part of `job_stalled`, not in shadow: for 30 minutes a job that worked before has every GPU of the node at least 99 % busy "
        "at no more than 23 % of its power limit, with its memory at rest (1 % of the time), its SM clock high and next to nothing over NVLink, PCIe and network. Its kernels "
        "wait for each other. About the job and never a reason to drain. Only where GPM or DCGM's profiling fields show memory traffic; "
        "`GPUWARDEN_STALL=ignore` leaves a job out.",
        source="marin-community/marin#7344 (512 GPUs for 33 minutes); NVIDIA/nccl#968 (100 %, 70 W); NVIDIA/NeMo#9291 (100 of 700 W); scitix/sichek, GPUHang (160 of 700 W)",
        depends_on=NO_DRIVER,
    ),
    Condition(
        code="job_stalled", scope="job", severity=W, advice=Advice.RESTART_APP, fall=60, shadow=True,
        title="A job is busy and does nothing",
        why="For 4 minutes (`jobs.stalled_after`) all its GPUs here are at least 95 % busy at less than half of the power of its own "
        "earlier busy minutes, and tensor cores and memory at a tenth of their activity (where no source gives that: at a third of the "
        "power and a tenth of the traffic over NVLink and RDMA): its ranks wait for each other. About the job and never a reason to drain. For "
        "batch jobs of Slurm with 2 or more whole GPUs on this node, from 10 busy minutes on; `GPUWARDEN_STALL=ignore` in the environment "
        "or the comment of a job leaves it out. Containers opt in (`jobs.stalled_containers`). In shadow in this release.",
        source="marin-community/marin#7344, #8934 (512 GPUs for 33 minutes), NVIDIA/NeMo#9291 (500 to 690 W became 100); NCCL's watchdog "
        "takes 10 minutes", depends_on=NO_DRIVER,
    ),
)  # fmt: skip

TO_DO: Mapping[str, str] = {
    "job_hung": "Ask the job's owner, or end it: `scancel JOB`. `py-spy dump --pid PID` shows where its ranks wait. No reason to drain the node.",
    "job_stalled": "Ask the job's owner: `py-spy dump --pid PID` shows where its ranks wait. No reason to drain the node.",
}

RUNBOOKS: Mapping[str, str] = {"job_hung": "gpu"}
