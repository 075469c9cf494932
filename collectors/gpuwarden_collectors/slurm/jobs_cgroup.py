"""Which job a process belongs to, from where Slurm put it in the tree of control groups.

    v1       /slurm/uid_1001/job_4711/step_0/task_3            (slurm_NODE with several slurmd on one host)
    v2       /system.slice/slurmstepd.scope/job_4711/step_batch/user/task_0      (NODE_slurmstepd.scope)
    26.05    /system.slice/slurmstepd.scope/s5K1P9VPN8R8C00/step_0/user/task_0   (unless CgroupJobIdPaths=yes)

The last names the job by its SLUID: its number has to come from a process in there. A slurmd in a container has these below the
container's own group. Anywhere else the same names mean nothing, nor do they in folders that are not root's, up to the job's own
(`control_groups.py`): what is below a job's folder its user may have made.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from gpuwarden_collectors.control_groups import SLICES, GroupLine, RootFolders, container_at, lines, place_begins
from gpuwarden_collectors.host_files import read_text

_V1 = re.compile(r"/slurm(?:_[^/]+)?/uid_(?P<owner>\d{1,10})/job_(?P<job>\d{1,10})(?=/|$)")
_V2 = re.compile(
    rf"{SLICES}/(?:[^/]*_)?slurmstepd\.scope/(?:job_(?P<job>\d{{1,10}})|(?P<sluid>s[0-9A-Za-z]{{6,24}}))(?=/|$)"
)
_STEP = re.compile(r"/step_([^/\s]{1,32})(?:/(?:user/)?task_([^/\s]{1,32}))?")
_INNER = "/container/"  # crun's folder within a scope, of what runs in it
_LINES_MAX = 64 * 1024  # bytes; a host has a dozen v1 hierarchies


@dataclass(frozen=True, slots=True)
class JobCgroup:
    """The place of a process in Slurm's control groups.

    `job` is its number, or None where the tree has only its SLUID. `owner` is the job's user, if the tree says it.
    `step` and `task` are as Slurm names them: 0, batch, extern, interactive; 0, special.
    """

    job: int | None = None
    sluid: str = ""
    step: str = ""
    task: str = ""
    owner: int | None = None


NO_JOB = JobCgroup()


def job_cgroup_in(text: str, folders: RootFolders) -> JobCgroup:
    """The job in the content of /proc/PID/cgroup. Of the hierarchies of v1 some are divided by steps only: the deepest counts."""
    jobs = [job for line in lines(text) if (job := _job_in(line, folders)) != NO_JOB]
    same = [job for job in jobs if (job.job, job.sluid) == (jobs[0].job, jobs[0].sluid)]
    return max(same, key=lambda job: (bool(job.step), bool(job.task)), default=NO_JOB)


def _job_in(line: GroupLine, folders: RootFolders) -> JobCgroup:
    begin = place_begins(line.path)
    while (container := container_at(line.path, begin)) is not None:
        begin = container.end
        if line.path.startswith(_INNER, begin):
            begin += len(_INNER) - 1
    match = (_V2 if not line.controllers else _V1).match(line.path, begin) or _V2.match(line.path, begin)
    if match is None or not folders.are_roots(line, match.end()):
        return NO_JOB
    named = match.groupdict()
    step = _STEP.match(line.path, match.end())
    return JobCgroup(
        job=int(named["job"]) if named["job"] else None,
        sluid=named.get("sluid") or "",
        step=step[1] if step else "",
        task=(step[2] or "") if step else "",
        owner=int(named["owner"]) if named.get("owner") else None,
    )


def job_cgroup_of(proc: Path, pid: int, folders: RootFolders | None = None) -> JobCgroup:
    """Takes no lock of the process, so that it cannot hang with it. Nowhere for a process that is gone."""
    try:
        text = read_text(proc / str(pid) / "cgroup", _LINES_MAX)
    except OSError:
        return NO_JOB
    return job_cgroup_in(text, RootFolders(proc) if folders is None else folders)
