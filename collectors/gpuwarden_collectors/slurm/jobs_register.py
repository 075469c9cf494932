"""What prolog and epilog leave in the run directory: a small file for each job, named by its number.

    uid=1001 gpus=0,3 started=86400 user=somebody
    ended=86460

Written by root's scripts with a shell's own commands, one line each; a line of another form is passed over.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from gpuwarden_collectors.host_files import read_text
from gpuwarden_collectors.slurm.jobs_facts import Job
from gpuwarden_collectors.slurm.jobs_text import numbers

FILES_MAX = 4096


def registered(folder: Path, now: float) -> dict[int, Job]:
    """All jobs, by number. What is from before this boot is not counted. Empty without the folder."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.name.isdecimal()][:FILES_MAX]
    except OSError:
        return {}
    jobs = {}
    for name in names:
        with contextlib.suppress(OSError):
            job = parse(int(name), read_text(folder / name))
            if (job.started or job.ended or 0.0) <= now + 1:
                jobs[job.id] = job
    return jobs


def parse(number: int, text: str) -> Job:
    words = dict(word.split("=", 1) for word in text.split() if "=" in word)
    started, ended, uid = (_count(words.get(name, "")) for name in ("started", "ended", "uid"))
    return Job(
        id=number,
        uid=uid,
        user=words.get("user", "")[:64],
        gpus=tuple(numbers(words.get("gpus", ""))),
        started=started,
        ended=ended,
    )


def forget(folder: Path, number: int) -> None:
    with contextlib.suppress(OSError):
        (folder / str(number)).unlink()


def _count(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 12 else None
