"""Whose a process is, from its control groups: a job's of Slurm, or a container's. `places.py` has the places that count.

Of containers in a container the outermost counts: that is the one which this host started. What Slurm put into a group of a job is
the job's, be it in a container or around one.
"""

from __future__ import annotations

from gpuwarden_collectors.control_groups import RootFolders, lines
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.places import container_at, place_begins
from gpuwarden_collectors.slurm.jobs_cgroup import NO_JOB, job_cgroup_in


@dataclass(frozen=True, slots=True)
class Group:
    """The place of a process in the control groups.

    `job` is Slurm's number of the job, or the SLUID where the tree has only that. `owner` is the job's user, if the
    tree says it. `step` and `task` are as Slurm names them: 0, batch, extern, interactive; 0, special.
    """

    job: int | None = None
    sluid: str = ""
    step: str = ""
    task: str = ""
    owner: int | None = None
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
