"""Finds the job of a process from its control group (`places.py`).

If the path has only the SLUID of a job, its number comes from the prolog's note or from one of its processes. The
groups of a slurmd in a container are below the container's. Other paths are ignored, and so are folders down to the
job's that do not belong to root (`control_groups.py`); the job's user may have created those below.
"""

from __future__ import annotations

import re
from pathlib import Path

from gpuwarden_collectors.control_groups import GroupLine, RootFolders, lines
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.host_files import read_text
from gpuwarden_collectors.places import SlurmPlace, container_at, place_begins, slurm_at

_STEP = re.compile(r"/step_([^/\s]{1,32})(?:/(?:user/)?task_([^/\s]{1,32}))?")
_INNER = "/container/"  # crun's folder for the processes of a scope
_LINES_MAX = 64 * 1024  # bytes; a host has a dozen v1 hierarchies


@dataclass(frozen=True, slots=True)
class JobCgroup:
    """The job, step and task of a process, from Slurm's control groups.

    `job` is None if the path has only the SLUID. `owner` is the job's user, if the path contains it. `step` and `task`
    are Slurm's names: 0, batch, extern, interactive; 0, special.
    """

    job: int | None = None
    sluid: str = ""
    step: str = ""
    task: str = ""
    owner: int | None = None


NO_JOB = JobCgroup()


def job_cgroup_in(text: str, folders: RootFolders) -> JobCgroup:
    """Parses the job from /proc/PID/cgroup. Some v1 hierarchies only have steps, so the deepest path counts."""
    jobs = [job for line in lines(text) if (job := _job_in(line, folders)) != NO_JOB]
    same = [job for job in jobs if (job.job, job.sluid) == (jobs[0].job, jobs[0].sluid)]
    return max(same, key=lambda job: (bool(job.step), bool(job.task)), default=NO_JOB)


def slurm_place(line: GroupLine, folders: RootFolders) -> SlurmPlace | None:
    """Returns the job's folder in a path, also below a container; None if the path is invalid or not root's."""
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
    """Reads the job of a process; NO_JOB if it is gone. Never blocks, since it needs no lock of the process."""
    try:
        text = read_text(proc / str(pid) / "cgroup", _LINES_MAX)
    except OSError:
        return NO_JOB
    return job_cgroup_in(text, RootFolders(proc) if folders is None else folders)
