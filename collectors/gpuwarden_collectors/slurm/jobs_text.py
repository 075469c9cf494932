"""Parses the output of Slurm's commands about jobs, which is stable since 22.05."""

from __future__ import annotations

import re

from gpuwarden_collectors.host_files import printable
from gpuwarden_collectors.slurm.hostlist import in_hostlist
from gpuwarden_collectors.slurm.jobs_facts import Job

SQUEUE_FORMAT = "%A|%U|%u|%T|%j"
"""Job number, uid, user, state, name. The name is last, because it may contain separators."""
ENDING = tuple("COMPLETED CANCELLED FAILED TIMEOUT NODE_FAIL PREEMPTED OUT_OF_MEMORY BOOT_FAIL DEADLINE".split())
NAME_MOST = 200
"""Characters of the name of a job."""
_JOBS_MAX = 10_000
_NUMBERS_MAX = 4096
_DETAIL = re.compile(r"^\s*Nodes=(\S+) .*?GRES=(\S*)", re.MULTILINE)
_SHARING = re.compile(r"^ +OverSubscribe=(\w+)(?: Exclusive=(\w+))?", re.MULTILINE | re.ASCII)
_GPUS = re.compile(r"(?:^|,)gpu(?::[^,():]*)*\(IDX:([0-9,-]*)\)")


def squeue(text: str) -> list[Job]:
    """Parses `squeue -h -w NODE -t R,CG,CF,S,ST -o SQUEUE_FORMAT`; skips lines of another form."""
    jobs: dict[int, Job] = {}
    for line in text.splitlines()[:_JOBS_MAX]:
        columns = line.split("|", 4)
        if len(columns) == 5 and is_number(columns[0]) and is_number(columns[1]) and columns[3] not in ENDING:
            number = int(columns[0])
            jobs[number] = Job(
                id=number, uid=int(columns[1]), user=columns[2], job_name=printable(columns[4], NAME_MOST)
            )
    return list(jobs.values())


def gpus_of(text: str, node: str) -> tuple[int, ...] | None:
    """Parses a job's GPUs on `node` from `scontrol show job -d ID`; None if it does not list them."""
    for nodes, gres in _DETAIL.findall(text):
        if in_hostlist(node, nodes):
            indices = [index for ranges in _GPUS.findall(gres) for index in numbers(ranges)]
            return tuple(sorted(set(indices)))
    return None


def is_exclusive(text: str) -> bool:
    """Parses from `scontrol show job ID` whether a job has exclusive nodes; False if it is not shown.

    Up to 25.11 such a job has OverSubscribe=NO. From 26.05 on most jobs have that, and a field Exclusive follows.
    Exclusive=TOPO is not enough: it is also shown for topologies where it has no effect (flat, tree;
    select/cons_tres, job_test.c).
    """
    settings = _SHARING.findall(text)  # a user can put another such line into a comment
    return bool(settings) and all(
        exclusive == "NODE" if exclusive else shared == "NO" for shared, exclusive in settings
    )


def numbers(text: str) -> list[int]:
    """Parses numbers and ranges: `0-2,5` is 0, 1, 2, 5. Skips anything else."""
    expanded: list[int] = []
    for item in text.split(","):
        if len(expanded) >= _NUMBERS_MAX:  # limits what a user's environment can expand to
            break
        first, dash, last = item.partition("-")
        if first.isdecimal() and (last.isdecimal() or not dash) and len(item) < 12:
            expanded.extend(range(int(first), min(int(last or first), int(first) + _NUMBERS_MAX) + 1))
    return expanded[:_NUMBERS_MAX]


def is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 12
