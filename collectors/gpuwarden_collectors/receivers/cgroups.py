"""Whose a process is, from its control groups: a job's of Slurm, or a container's.

    docker, systemd     /system.slice/docker-<id>.scope
    docker, cgroupfs    /docker/<id>
    podman              /machine.slice/libpod-<id>.scope/container       (libpod-conmon-<id> is its monitor, outside)
    containerd          /kubepods.slice/…/cri-containerd-<id>.scope, …:cri-containerd:<id>, /kubepods/burstable/pod…/<id>
    cri-o               /kubepods.slice/…/crio-<id>.scope

An id is 64 hexadecimal digits. Of containers in a container the outermost counts: that is the one which this host started.
What Slurm put into a group of a job is the job's, be it in a container or around one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpuwarden_collectors.slurm.jobs_cgroup import job_cgroup_in

_STEP = re.compile(r"/(?:job_\d+|s[0-9A-Za-z]{6,24})/step_([^/\s]{1,32})")
_OWNER = re.compile(r"/uid_(\d{1,10})/job_\d")
_TASK = re.compile(r"/step_[^/\s]+/(?:user/)?task_([^/\s]{1,32})")
_CONTAINER = re.compile(r"(?<!conmon)[/:-]([0-9a-f]{64})(?:\.scope)?(?=/|$)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Group:
    """`job` is Slurm's number of it; where the tree has only its SLUID, that. `owner`: the job's user, if the tree says it.

    `step` and `task` as Slurm names them: 0, batch, extern, interactive; 0, special.
    """

    job: int | None = None
    sluid: str = ""
    step: str = ""
    task: str = ""
    owner: int | None = None
    container: str = ""


OUTSIDE = Group()


def group_in(text: str) -> Group:
    """Of the content of /proc/PID/cgroup."""
    slurm = job_cgroup_in(text)
    if slurm.job is not None or slurm.sluid:
        step, task, owner = _STEP.search(text), _TASK.search(text), _OWNER.search(text)
        return Group(
            job=slurm.job,
            sluid=slurm.sluid,
            step=step[1] if step else "",
            task=task[1] if task else "",
            owner=int(owner[1]) if owner else None,
        )
    container = _CONTAINER.search(text)
    return Group(container=container[1]) if container else OUTSIDE
