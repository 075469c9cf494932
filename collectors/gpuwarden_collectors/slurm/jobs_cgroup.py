"""Which job a process belongs to, from where Slurm put it in the tree of control groups.

    v1       /slurm/uid_1001/job_4711/step_0/task_3            (slurm_NODE with several slurmd on one host)
    v2       /system.slice/slurmstepd.scope/job_4711/step_batch/user/task_0      (NODE_slurmstepd.scope)
    26.05    /system.slice/slurmstepd.scope/s5K1P9VPN8R8C00/step_0/user/task_0   (unless CgroupJobIdPaths=yes)

The last names the job by its SLUID: its number has to come from a process in there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from gpuwarden_collectors.host_files import read_text

_V1 = re.compile(r"/slurm(?:_[^/]+)?/uid_\d+/job_(\d+)(?=/|$)")
_V2 = re.compile(r"/(?:[^/]*_)?slurmstepd\.scope/(?:job_(\d+)|(s[0-9A-Za-z]{6,24}))(?=/|$)")
_LINES_MAX = 64 * 1024  # bytes; a host has a dozen v1 hierarchies


@dataclass(frozen=True, slots=True)
class JobCgroup:
    """`job` is its number, or None where the tree has only its SLUID."""

    job: int | None = None
    sluid: str = ""


NO_JOB = JobCgroup()


def job_cgroup_in(text: str) -> JobCgroup:
    """Of the content of /proc/PID/cgroup."""
    for line in text.splitlines():
        path = line.split(":", 2)[-1]
        if (match := _V1.search(path)) is not None:
            return JobCgroup(job=int(match[1]))
        if (match := _V2.search(path)) is not None:
            return JobCgroup(job=int(match[1])) if match[1] else JobCgroup(sluid=match[2])
    return NO_JOB


def job_cgroup_of(proc: Path, pid: int) -> JobCgroup:
    """Takes no lock of the process, so that it cannot hang with it. Nowhere for a process that is gone."""
    try:
        return job_cgroup_in(read_text(proc / str(pid) / "cgroup", _LINES_MAX))
    except OSError:
        return NO_JOB
