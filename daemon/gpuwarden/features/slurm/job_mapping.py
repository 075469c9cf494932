"""dcgm-exporter's job mapping: a file for each GPU, or for each of its MIG instances, with one job number per line.

The files are named by the index, `3`, or index and GPU instance, `3.1`. The exporter reads them at each scrape and copies every
series of that GPU for every line, with the label hpc_job; a file that it cannot read fails its whole page. The daemon can read them
itself (`hpc_jobs`). The folder belongs to the daemon alone: a file with such a name and no job is deleted.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from gpuwarden.base.files import replace_file
from gpuwarden.health.gpu.jobs import on_gpus
from gpuwarden.publish.files.writer import Kept
from gpuwarden.publish.metrics.hpc_jobs import FILE_NAME
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.facts import GpuFacts


def mapping(snapshot: Snapshot) -> dict[str, str]:
    """Return the content of each file by name."""
    if snapshot.jobs is None or snapshot.nvml is None:
        return {}
    gpus = {facts.slot: facts for facts in snapshot.nvml.gpus if facts.slot}
    files: dict[str, list[int]] = {}
    slots = {*gpus, *(gpu.slot for gpu in snapshot.verdict.gpus)}
    for slot, jobs in on_gpus(snapshot.jobs, slots, gpus).items():
        facts = gpus.get(slot)
        for job in jobs:
            for name in () if facts is None or job.ended else _names(facts, job.pids):
                files.setdefault(name, []).append(job.job)
    return {name: "".join(f"{job}\n" for job in sorted(set(jobs))) for name, jobs in files.items()}


def _names(facts: GpuFacts, pids: tuple[int, ...]) -> list[str]:
    """Return the file names for a job on this GPU: its index or, with MIG, `index.instance` for each one used."""
    if not facts.mig:
        return [str(facts.index)]
    mine = {p.gpu_instance for p in facts.processes if p.pid in pids and p.gpu_instance is not None}
    return [f"{facts.index}.{instance}" for instance in sorted(mine)]


class JobMapping(Kept):
    """Keeps the folder up to date, in a thread. Only changes are written."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        super().__init__(folder, clock, remedy="see slurm.job_mapping_dir", name="job-mapping")
        self._written: Mapping[str, str] | None = None

    def publish(self, snapshot: Snapshot) -> None:
        files = mapping(snapshot)
        if files != self._written or self._error:
            self._written = files
            self._writer.submit(lambda: self._write(files))

    def close(self, timeout: float) -> bool:
        """Delete all mappings and end the thread; False if it hangs. Blocks."""
        self._writer.submit(lambda: self._write({}))
        return super().close(timeout)

    def _write(self, files: Mapping[str, str]) -> None:
        self._path.mkdir(mode=0o755, parents=True, exist_ok=True)
        for name, content in files.items():
            replace_file(self._path / name, content, mode=0o644)
        with os.scandir(self._path) as entries:
            left = [entry.path for entry in entries if FILE_NAME.fullmatch(entry.name) and entry.name not in files]
        for path in left:
            with contextlib.suppress(FileNotFoundError, IsADirectoryError, PermissionError):
                os.unlink(path)  # noqa: PTH108 - scandir gave text
        self._error = ""
