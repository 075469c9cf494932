"""Facts about what runs on the GPUs: jobs of Slurm, containers, pods, and sessions that no scheduler placed."""

from __future__ import annotations

from typing import ClassVar

from gpuwarden_collectors.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadProcess:
    """A process that has GPUs open."""

    pid: int
    """Process number."""
    uid: int
    """Its user."""
    slots: tuple[str, ...] = ()
    """PCI addresses of these GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Processes with GPUs that belong together, from the first one on until all of it is gone. With `started` the name is unique."""

    name: str
    """`slurm/7`, `container/0123456789ab`, `pod/namespace/name` (`pod/<uid>` where no folder of logs names the pod), `session/4711`."""
    also: tuple[str, ...] = ()
    """Other names of a pod: `pod/<uid>`, and its containers as `container/0123456789ab`."""
    uid: int | None = None
    """Its user; None if its processes are several users'. Root counts only where there is no other."""
    started: float = 0.0
    """When its first process that is known began, seconds of CLOCK_BOOTTIME."""
    ended: float | None = None
    """When it was found gone, seconds of CLOCK_BOOTTIME; None while it is there. It is reported for a minute more."""
    slots: tuple[str, ...] = ()
    """PCI addresses of the GPUs that it has or had open."""
    processes: tuple[WorkloadProcess, ...] = ()
    """Those that have a GPU open now."""
    group: str = ""
    """Path of its control group, as this process sees it; empty of a session, and where it has none."""
    oom_kills: int | None = None
    """Processes of its control group that the kernel killed for want of memory since it began; None where that cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadsFacts:
    """One pass over what runs on the GPUs."""

    collector: ClassVar[str] = "workloads"
    workloads: tuple[Workload, ...] = ()
    """In the order of their names."""
    left_out: int = 0
    """Workloads and processes beyond the limits of this collector."""
