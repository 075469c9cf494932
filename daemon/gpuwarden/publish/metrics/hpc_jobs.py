"""The label `hpc_job`, from the folder of files that dcgm-exporter reads for it (`--hpc-job-mapping-dir`).

The name of a file is the index of a GPU, `3`, or index and GPU instance, `3.1`. Each line is a job, unchanged. Every
series of that GPU or instance is exposed once for each job, as by dcgm-exporter. Prologs and epilogs write these files,
or the daemon (`slurm.job_mapping_dir`). dcgm-exporter reads them at each scrape and fails the whole page if one cannot
be read. Here a thread reads them after each pass for the next page, and a GPU whose file cannot be read has no jobs.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

from gpuwarden.base.background import BackgroundWriter
from gpuwarden.publish.snapshot import JobLabels

FILE_NAME = re.compile(r"\d{1,4}(?:\.\d{1,4})?", re.ASCII)
FILES_MOST = 256
JOBS_MOST = 8
"""Most jobs of one GPU or instance, since each multiplies its series."""
_BYTES_MOST = 4096


class HpcJobs:
    """A call, made for each page, returns the jobs last read and starts another read of the folder. It never waits."""

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        self._folder = folder
        self._seen = JobLabels()
        self._reader = BackgroundWriter("hpc jobs", 1, newest_wins=True, on_error=self._failed, clock=clock)
        self._reader.submit(self._read)

    def __call__(self) -> JobLabels:
        self._reader.submit(self._read)
        return self._seen

    async def flush(self, timeout: float) -> bool:  # noqa: ASYNC109 - returns False at the deadline, which is no error here
        return await self._reader.flush(timeout)

    def close(self, timeout: float) -> bool:
        """End the thread; return False if it hangs. Blocks."""
        return self._reader.close(timeout)

    def _read(self) -> None:
        jobs, errors = {}, []
        for name in _names(self._folder):
            try:
                jobs[name] = _lines(self._folder / name)
            except OSError as error:
                errors.append(_described(self._folder / name, error))
        with_lines = {name: lines for name, lines in jobs.items() if lines}
        self._seen = JobLabels(jobs=with_lines, error="; ".join(errors[:3]))

    def _failed(self, error: Exception) -> None:
        self._seen = JobLabels(error=_described(self._folder, error))


def _described(path: Path, error: Exception) -> str:
    why = error.strerror if isinstance(error, OSError) else repr(error)
    return f"cannot read the jobs of GPUs from {path}: {why}; see publish.hpc_job_mapping_dir"


def _names(folder: Path) -> list[str]:
    """Return the sorted names of the mapping files, at most FILES_MOST.

    A missing folder counts as empty, since prologs create it with the first job.
    """
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if FILE_NAME.fullmatch(entry.name))[:FILES_MOST]
    return []


def _lines(file: Path) -> tuple[str, ...]:
    """Return the distinct jobs of a regular file. A repeated line would be one series with two values."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ()
        content = os.read(descriptor, _BYTES_MOST)
    finally:
        os.close(descriptor)
    lines = content.decode("utf-8", "replace").removesuffix("\n").split("\n") if content else []
    return tuple(dict.fromkeys(line.removesuffix("\r") for line in lines))[:JOBS_MOST]
