"""The keys of `[slurm]` for its hooks and its jobs: what the scripts do on a verdict that is old, and what is read of jobs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpuwarden.durations import format_duration

Misfit = tuple[tuple[str, ...], str]


@dataclass(frozen=True, slots=True)
class SlurmJobOptions:
    """Durations in seconds.

    `drain_by`: "hook" lets the daemon drain only when HealthCheckProgram has asked for it. `on_stale`: what follows from a
    verdict that is missing or old: nothing; the prolog refuses jobs; or the health check drains, `stale_grace` after it first
    found it so. `jobs`: whether it is read which jobs are here, each `jobs_interval`. `job_mapping_dir`: where dcgm-exporter
    looks for the jobs of each GPU; None for nowhere.
    """

    drain_by: Literal["daemon", "hook"] = "daemon"
    on_stale: Literal["ignore", "refuse", "drain"] = "ignore"
    stale_grace: float = 600.0
    jobs: bool = True
    jobs_interval: float = 15.0
    job_mapping_dir: Path | None = None


_BOUNDS = (
    ("stale_grace", 60.0, 86_400.0, "a daemon that is upgraded is away for a moment"),
    ("jobs_interval", 1.0, 120.0, "what holds a GPU after its job is to be found before the next one starts"),
)


def slurm_job_misfits(slurm: SlurmJobOptions) -> Iterator[Misfit]:
    """Values that are of the right kind and yet wrong, by their keys."""
    for key, least, most, why in _BOUNDS:
        value = getattr(slurm, key)
        if not least <= value <= most:
            allowed = f"{format_duration(least)} to {format_duration(most)}"
            yield (f"slurm.{key}",), f"expected {allowed}, found {format_duration(value)}: {why}"
    if slurm.job_mapping_dir is not None and not slurm.job_mapping_dir.is_absolute():
        yield ("slurm.job_mapping_dir",), f"expected an absolute path, found {str(slurm.job_mapping_dir)[:60]!r}"
