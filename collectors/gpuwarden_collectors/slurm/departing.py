"""Reads the jobs of a node that is about to end, from the controller and slurmd, with one call for all of them.

The controller's answer contains all jobs of the cluster, and the command filters it. Nothing here is queried unless the
node is about to end. Each call takes about 10 ms on an idle controller, and has the time limit of `Commands`.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from pathlib import Path

from gpuwarden_collectors.host_files import read_text
from gpuwarden_collectors.slurm import departing_text
from gpuwarden_collectors.slurm.client import Commands
from gpuwarden_collectors.slurm.departing_facts import ListedPid, SlurmJob
from gpuwarden_collectors.slurm.errors import SlurmError

_NO_STEPS = "No job steps exist"
_NO_JOB = "Invalid job id"
_STEP_NOT_FOUND = re.compile(r"Job step \S+ not found")
_CONF_MOST = 65_536  # bytes


async def read_jobs(commands: Commands, node: str) -> dict[int, SlurmJob]:
    """Returns the jobs that have the node and have not ended, by number, with all fields.

    Raises SlurmError, including UnknownNode.
    """
    token = secrets.token_hex(8)
    text = await commands.ask(f"cannot read the jobs of {node}", *_squeue(token), f"--nodelist={node}")
    return departing_text.jobs(text, token)


async def read_job(commands: Commands, job: SlurmJob) -> SlurmJob | None:
    """Reads a job again, which may be pending meanwhile; returns None if it has ended. Raises SlurmError."""
    token = secrets.token_hex(8)
    try:
        text = await commands.ask(f"cannot read job {job.called}", *_squeue(token), f"--jobs={job.called}")
    except SlurmError as error:
        if _NO_JOB in str(error):
            return None
        raise
    return departing_text.jobs(text, token).get(job.id)


async def read_steps(commands: Commands, job: SlurmJob) -> tuple[str, ...]:
    """Returns the names of a job's running steps on all nodes: numbers, and names such as batch, which lasts as long as
    the script; parts of a step as in `departing_text.steps`. Raises SlurmError, also if the controller does not have
    the job.

    From 24.05 on a node of the job can manage its numbered steps (`sbatch --stepmgr`, enable_stepmgr). squeue does not
    list these; `scontrol show step` for one job queries that node. While the node does not answer, the steps are
    missing without an error (src/api/job_step_info.c, _get_stepmgr_steps): see `manages_steps`.
    """
    undone = f"cannot read the steps of job {job.called}"
    try:
        text = await commands.ask(undone, "scontrol", "--local", "--all", "--oneliner", "show", "step", str(job.id))
    except SlurmError as error:
        if _STEP_NOT_FOUND.search(str(error)):
            return ()
        raise
    return departing_text.steps(text, job.in_steps)


async def manages_steps(commands: Commands, job: SlurmJob) -> bool:
    """True if a node of the job, and not the controller, manages its numbered steps. Raises SlurmError."""
    undone = f"cannot read who manages the steps of job {job.called}"
    text = await commands.ask(undone, "scontrol", "--local", "--all", "show", "job", job.in_steps)
    return "StepMgrEnabled=Yes" in text


def _squeue(token: str) -> tuple[str, ...]:
    return "squeue", "--local", "--all", "--noheader", f"--Format={departing_text.job_format(token)}"


async def listpids(commands: Commands, node: str) -> dict[int, ListedPid]:
    """Returns the processes of all steps on this node, by PID. Reads slurmd's spool; needs no controller.

    Raises SlurmError.
    """
    undone = f"cannot list the processes of jobs on {node}"
    for attempt in (1, 2):  # a step that ends meanwhile makes the whole call fail
        try:
            return departing_text.listed_pids(await commands.ask(undone, "scontrol", "listpids", "*", node))
        except SlurmError as error:
            if _NO_STEPS in str(error):
                break
            if attempt == 2:
                raise
    return {}


async def signals_whole_trees(commands: Commands, conf: Path | None = None) -> bool | None:
    """True if a signal for a step reaches all its processes, False if only its task leaders, None if unknown.

    cgroup.conf is in the folder of `conf`, this host's slurm.conf. The answer is valid until slurmd restarts. Raises
    SlurmError.
    """
    config = await commands.ask("cannot read how Slurm tracks processes", "scontrol", "show", "config")
    return departing_text.whole_trees(config, await asyncio.to_thread(_cgroup_conf, conf))


def _cgroup_conf(conf: Path | None) -> str | None:
    """Returns the content of cgroup.conf; "" (slurmd's defaults) if the folder of slurm.conf has none."""
    if conf is None or not conf.exists():
        return None
    try:
        return read_text(conf.with_name("cgroup.conf"), _CONF_MOST)
    except FileNotFoundError:
        return ""
    except OSError:
        return None
