"""The keys of `[slurm]` for its hooks and its jobs: what the scripts do on a verdict that is old, and what is read of jobs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpuwarden.base.durations import format_duration

Misfit = tuple[tuple[str, ...], str]


@dataclass(frozen=True, slots=True)
class SlurmJobOptions:
    """Durations in seconds.

    `drain_by`: "hook" lets the daemon drain only when HealthCheckProgram has asked for it. `on_stale`: what follows from a
    verdict that is missing or old: nothing, or the prolog refuses jobs. `jobs`: whether it is read which jobs are here, each
    `jobs_interval`. `job_mapping_dir`: where dcgm-exporter looks for the jobs of each GPU; None for nowhere.
    """

    drain_by: Literal["daemon", "hook"] = "daemon"
    on_stale: Literal["ignore", "refuse"] = "ignore"
    jobs: bool = True
    jobs_interval: float = 15.0
    job_mapping_dir: Path | None = None


_INTERVAL = (1.0, 120.0)


def slurm_job_misfits(slurm: SlurmJobOptions) -> Iterator[Misfit]:
    """Values that are of the right kind and yet wrong, by their keys."""
    least, most = _INTERVAL
    if not least <= slurm.jobs_interval <= most:
        allowed, found = f"{format_duration(least)} to {format_duration(most)}", format_duration(slurm.jobs_interval)
        why = "what holds a GPU after its job is to be found before the next one starts"
        yield ("slurm.jobs_interval",), f"expected {allowed}, found {found}: {why}"
    if slurm.job_mapping_dir is not None and not slurm.job_mapping_dir.is_absolute():
        yield ("slurm.job_mapping_dir",), f"expected an absolute path, found {str(slurm.job_mapping_dir)[:60]!r}"
