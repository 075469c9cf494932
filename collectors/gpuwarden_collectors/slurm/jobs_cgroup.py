"""Which job a process belongs to, from where Slurm put it in the tree of control groups (`places.py`).

Where the tree has only the SLUID of a job, its number has to come from the prolog's note or from a process in there. A slurmd in a
container has its groups below the container's own. Names at other places mean nothing, nor do those in folders that are not root's, up
to the job's own (`control_groups.py`): what is below a job's folder its user may have made.
"""

from __future__ import annotations

import re
from pathlib import Path

from gpuwarden_collectors.control_groups import GroupLine, RootFolders, lines
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.host_files import read_text
from gpuwarden_collectors.places import SlurmPlace, container_at, place_begins, slurm_at

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


def slurm_place(line: GroupLine, folders: RootFolders) -> SlurmPlace | None:
    """The job's folder in a path, be it below a container's; None if there is none at its place, or it is not root's."""
    begin = place_begins(line.path)
    while (container := container_at(line.path, begin)) is not None:
        begin = container.end
        if line.path.startswith(_INNER, begin):
            begin += len(_INNER) - 1
    place = slurm_at(line.path, begin, v1=bool(line.controllers))
    return place if place is not None and folders.are_roots(line, place.end) else None


def _job_in(line: GroupLine, folders: RootFolders) -> JobCgroup:
    place = slurm_place(line, folders)
    if place is None:
        return NO_JOB
    step = _STEP.match(line.path, place.end)
    return JobCgroup(
        job=place.job,
        sluid=place.sluid,
        step=step[1] if step else "",
        task=(step[2] or "") if step else "",
        owner=place.owner,
    )


def job_cgroup_of(proc: Path, pid: int, folders: RootFolders | None = None) -> JobCgroup:
    """Takes no lock of the process, so that it cannot hang with it. Nowhere for a process that is gone."""
    try:
        text = read_text(proc / str(pid) / "cgroup", _LINES_MAX)
    except OSError:
        return NO_JOB
    return job_cgroup_in(text, RootFolders(proc) if folders is None else folders)
