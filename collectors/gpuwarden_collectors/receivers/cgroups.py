"""Finds the Slurm job or the container of a process from its control groups. `places.py` has the valid paths.

Of nested containers the outermost counts, because this host started it. A process in a job's group belongs to the job,
whether the group is inside a container or around it.
"""

from __future__ import annotations

from gpuwarden_collectors.control_groups import RootFolders, lines
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.places import container_at, place_begins
from gpuwarden_collectors.slurm.jobs_cgroup import NO_JOB, JobCgroup, job_cgroup_in


@dataclass(frozen=True, slots=True)
class Group(JobCgroup):
    """The job or container of a process, from its control groups."""

    container: str = ""


OUTSIDE = Group()


def group_in(text: str, folders: RootFolders) -> Group:
    """Parses the content of /proc/PID/cgroup."""
    slurm = job_cgroup_in(text, folders)
    if slurm != NO_JOB:
        return Group(job=slurm.job, sluid=slurm.sluid, step=slurm.step, task=slurm.task, owner=slurm.owner)
    for line in lines(text):
        place = container_at(line.path, place_begins(line.path))
        if place is not None and folders.are_roots(line, place.end):
            return Group(container=place.container)
    return OUTSIDE
