"""One process, as far as it shows which job it belongs to.

Its environment is what the kernel keeps of its start: a program can have replaced it, so that the control group counts
more. To read it takes the memory lock of the process: never done while it sleeps where no signal reaches it, since the
reader would be stuck with it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuwarden_collectors.host_files import read_bytes
from gpuwarden_collectors.slurm.jobs_text import numbers

_TICKS = os.sysconf("SC_CLK_TCK")
_ENVIRON_MAX = 256 * 1024  # bytes


@dataclass(frozen=True, slots=True)
class Process:
    """`started` is CLOCK_BOOTTIME. `stuck`: in D state at this moment."""

    pid: int
    uid: int
    started: float
    stuck: bool


@dataclass(frozen=True, slots=True)
class Claim:
    """What the environment says. `gpus` are those that Slurm's variables give for this node."""

    job: int
    gpus: tuple[int, ...] = ()
    job_name: str = ""


def process(proc: Path, pid: int) -> Process | None:
    """None for one that is gone."""
    folder = proc / str(pid)
    try:
        uid = folder.stat().st_uid
        fields = read_bytes(folder / "stat").rpartition(b") ")[2].split()
        return Process(pid, uid, int(fields[19]) / _TICKS, stuck=fields[0] == b"D")
    except (OSError, IndexError, ValueError):
        return None


def claim(proc: Path, found: Process) -> Claim | None:
    if found.stuck:
        return None
    try:
        data = read_bytes(proc / str(found.pid) / "environ", _ENVIRON_MAX)
    except OSError:
        return None
    return claimed(dict(_variables(data)))


def claimed(variables: Mapping[str, str]) -> Claim | None:
    """None where no job is named."""
    job = variables.get("SLURM_JOB_ID") or variables.get("SLURM_JOBID", "")
    if not (job.isascii() and job.isdecimal() and len(job) < 12):
        return None
    gpus = variables.get("SLURM_STEP_GPUS", "")
    if not gpus and ("SLURM_STEP_ID" not in variables or variables.get("SLURM_JOB_NUM_NODES") == "1"):
        gpus = variables.get("SLURM_JOB_GPUS", "")  # of the batch host: a step on another node has inherited it
    name = "".join(char if char.isprintable() else "?" for char in variables.get("SLURM_JOB_NAME", "")[:200])
    return Claim(int(job), tuple(numbers(gpus)), name)


def _variables(data: bytes) -> list[tuple[str, str]]:
    pairs = (item.decode("utf-8", "replace").partition("=") for item in data.split(b"\0") if item.startswith(b"SLURM_"))
    return [(name, value) for name, _, value in pairs]
