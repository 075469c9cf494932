"""Facts about containers with GPUs that have opted in to `job_stalled`."""

from __future__ import annotations

from typing import ClassVar

from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.slurm.jobs_facts import JobProcess


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedContainer:
    """A container, of a pod or not, outside of Slurm's jobs."""

    id: str
    """The first twelve digits of its id."""
    processes: tuple[JobProcess, ...] = ()
    """Processes of it that have a GPU open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainersFacts:
    """One pass over the containers with GPUs."""

    collector: ClassVar[str] = "containers"
    containers: tuple[WatchedContainer, ...] = ()
    """Those that have opted in."""
    cpu_at: float | None = None
    """When CPU times were read, about once a minute, seconds of CLOCK_BOOTTIME."""
