"""The notes of prolog and epilog: a small file per job, named by its number, in a folder writable only by their user.

    uid=1001 gpus=0,3 started=86400 user=somebody stall=ignore nodes=2 sluid=sE0DM8K1GXP400 node=n1 list=n[1-2]
    refused=1
    ended=86460 exit=3:0

`refused` is set if the prolog refused the job, `stall` if the job's comment opts out of `job_stalled`, `sluid` since
Slurm 25.11. `list` contains the job's nodes, truncated if long; the first one runs the batch script. `exit` is the
script's exit code and signal, if the epilog has them; signal 125 means an OOM kill. Root's scripts write one line each
with shell builtins; lines of another form, and one that is still being written, are skipped. The daemon, which may run
as another user, only reads the notes; root removes them (`tidy`) in the epilog's `gpuwarden slurm look`.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from gpuwarden_collectors.host_files import PAGE, read_bytes
from gpuwarden_collectors.places import is_sluid
from gpuwarden_collectors.slurm.hostlist import first_host
from gpuwarden_collectors.slurm.jobs_end import OUT_OF_MEMORY, exit_of
from gpuwarden_collectors.slurm.jobs_facts import PROLOG_FAILED, Job
from gpuwarden_collectors.slurm.jobs_text import numbers

FILES_MAX = 4096
KEPT_FOR = 600.0
"""Seconds for which the note of an ended job is kept: twice the time in which the daemon finds who holds its GPU."""
KEPT = 100
"""Notes that are kept longer, of the newest jobs: a process that holds a GPU for hours keeps its job's name."""


def registered(folder: Path, now: float) -> dict[int, Job]:
    """Returns all jobs by number, the newest if there are too many; empty without the folder.

    Ignores entries from before this boot.
    """
    try:
        with os.scandir(folder) as entries:
            job_numbers = sorted(int(entry.name) for entry in entries if _is_note(entry.name))
    except OSError:
        return {}
    jobs = {}
    for number in job_numbers[-FILES_MAX:]:
        with contextlib.suppress(OSError):
            text = _whole_lines(read_bytes(folder / str(number), PAGE))
            job = parse(number, text)
            if text and (job.started or job.ended or 0.0) <= now + 1:
                jobs[job.id] = job
    return jobs


def tidy(folder: Path, now: float) -> int:
    """Removes the notes of jobs that ended long ago; returns their number.

    Skips a folder that other users can write to.
    """
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        status = os.fstat(opened)
        if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return 0
        ended = sorted((job.ended, job.id) for job in registered(folder, now).values() if job.ended is not None)
        gone = [number for at, number in ended[:-KEPT] if now - at > KEPT_FOR]
        for number in gone:
            with contextlib.suppress(OSError):
                os.unlink(str(number), dir_fd=opened)
    finally:
        os.close(opened)
    return len(gone)


def _is_note(name: str) -> bool:
    return name.isascii() and name.isdecimal() and len(name) < 12 and not (name[0] == "0" and name != "0")


def _whole_lines(content: bytes) -> str:
    """Returns all lines but one without a line feed: a script has opened the file, and is about to write it."""
    return content[: content.rfind(b"\n") + 1].decode("ascii", "replace")


def parse(number: int, text: str) -> Job:
    """Parses a note. Of several ends the first is that of the run whose begin it has: a busy slurmd may run no prolog for
    the next run of a requeued job.
    """
    lines = text.splitlines()
    ends = [place for place, line in enumerate(lines, 1) if line.startswith("ended=")]
    pairs = dict(
        item.split("=", 1) for line in lines[: min(ends, default=None)] for item in line.split() if "=" in item
    )
    started, ended, uid, nodes = (_count(pairs.get(name, "")) for name in ("started", "ended", "uid", "nodes"))
    code, signal = exit_of(pairs.get("exit", "")) if ended is not None else (None, None)
    if "refused" in pairs:
        signal = PROLOG_FAILED
    node = pairs.get("node", "")
    return Job(
        id=number,
        uid=uid,
        sluid=sluid if is_sluid(sluid := pairs.get("sluid", "")) else "",
        user=pairs.get("user", "")[:64],
        gpus=tuple(numbers(pairs.get("gpus", ""))),
        started=started,
        ended=ended,
        watched=pairs.get("stall") != "ignore",
        nodes=nodes,
        batch=node != "" and first_host(pairs.get("list", "")) == node,
        exit_code=code or None,
        signal=None if signal == OUT_OF_MEMORY else signal,
        state="OUT_OF_MEMORY" if signal == OUT_OF_MEMORY else "",
    )


def _count(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 12 else None
