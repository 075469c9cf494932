"""Reads the facts about a process that show its job.

The kernel exposes its initial environment, which a program can overwrite; therefore the control group is more
trustworthy. Reading the environment takes the process's memory lock, so it is not read while the process is in
uninterruptible sleep: the reader could hang.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.host_files import printable, read_bytes
from gpuwarden_collectors.slurm.jobs_text import NAME_MOST, numbers

_TICKS = os.sysconf("SC_CLK_TCK")
_ENVIRON_MAX = 256 * 1024  # bytes
STALL = "GPUWARDEN_STALL"
"""Variable by which a batch job opts out of `job_stalled`, and a container opts in."""
WATCH = "watch"
_REFUSALS = ("ignore", "none", "no", "off", "0")
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
_BATCH_STEP = "-5"
"""SLURM_STEP_ID of a batch script since 26.05; unset before."""
_READ = (b"SLURM_", b"ENVIRONMENT=", *(f"{name}=".encode() for name in (STALL, *_RANKS)))
"""Variables that are read. ENVIRONMENT is BATCH in a batch script and its children (env_array_for_batch_job)."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process.

    `started` is in seconds of CLOCK_BOOTTIME. `stuck` is true if it is currently in D state. `cpu` is the CPU time of
    all its threads in seconds.
    """

    pid: int
    uid: int
    started: float
    stuck: bool
    cpu: float = 0.0


@dataclass(frozen=True, slots=True)
class Claim:
    """The job named by an environment.

    `gpus`: from Slurm's variables, for this node. `batch` is true for a batch job, `ignores_stall` if the user opted
    out of `job_stalled`. `rank` is the process's number in the job.
    """

    job: int
    gpus: tuple[int, ...] = ()
    job_name: str = ""
    batch: bool = False
    ignores_stall: bool = False
    rank: int | None = None


def process(proc: Path, pid: int) -> Process | None:
    """Reads a process; returns None if it is gone."""
    folder = proc / str(pid)
    try:
        uid = folder.stat().st_uid
        fields = read_bytes(folder / "stat").rpartition(b") ")[2].split()
        cpu = (int(fields[11]) + int(fields[12])) / _TICKS
        return Process(pid, uid, int(fields[19]) / _TICKS, stuck=fields[0] == b"D", cpu=cpu)
    except (OSError, IndexError, ValueError):
        return None


def claim(proc: Path, live_process: Process) -> Claim | None:
    return claimed(variables(proc, live_process))


def variables(proc: Path, live_process: Process) -> Mapping[str, str]:
    """Returns the relevant environment variables; empty if the process is stuck or not readable."""
    if live_process.stuck:
        return {}
    try:
        data = read_bytes(proc / str(live_process.pid) / "environ", _ENVIRON_MAX)
    except OSError:
        return {}
    return dict(_variables(data))


def wish(variables: Mapping[str, str]) -> str:
    """Returns the owner's setting for `job_stalled` in lower case; "" if the variable is not set."""
    return variables.get(STALL, "").strip().lower()[:16]


def rank_of(variables: Mapping[str, str]) -> int | None:
    """Returns the process's number in the job, or None where it declares none."""
    for name in _RANKS:
        text = variables.get(name, "")
        if text.isascii() and text.isdecimal() and len(text) < 8:
            return int(text)
    return None


def claimed(variables: Mapping[str, str]) -> Claim | None:
    """Returns the claim in an environment, or None if it names no job."""
    job = variables.get("SLURM_JOB_ID") or variables.get("SLURM_JOBID", "")
    if not (job.isascii() and job.isdecimal() and len(job) < 12):
        return None
    gpus = variables.get("SLURM_STEP_GPUS", "")
    in_batch = variables.get("SLURM_STEP_ID", _BATCH_STEP) == _BATCH_STEP
    if not gpus and (in_batch or variables.get("SLURM_JOB_NUM_NODES") == "1"):
        gpus = variables.get("SLURM_JOB_GPUS", "")  # of the batch host: a step on another node has inherited it
    name = printable(variables.get("SLURM_JOB_NAME", ""), NAME_MOST)
    return Claim(
        int(job),
        tuple(numbers(gpus)),
        name,
        batch=variables.get("ENVIRONMENT") == "BATCH",
        ignores_stall=wish(variables) in _REFUSALS,
        rank=rank_of(variables),
    )


def _variables(data: bytes) -> list[tuple[str, str]]:
    pairs = (item.decode("utf-8", "replace").partition("=") for item in data.split(b"\0") if item.startswith(_READ))
    return [(name, value) for name, _, value in pairs]
