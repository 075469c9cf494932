"""Facts about the workloads on the GPUs: Slurm jobs, containers, pods, and sessions without a scheduler."""

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
    """A workload that uses GPUs, from its first process to its end. `name` and `started` together are unique."""

    name: str
    """`slurm/7`, `container/0123456789ab`, `pod/namespace/name` (`pod/<uid>` if it has no logs), `session/4711`."""
    also: tuple[str, ...] = ()
    """Other names of a pod: `pod/<uid>`, and its containers as `container/0123456789ab`."""
    uid: int | None = None
    """Its user; None if its processes have several users. Root counts only if there is no other."""
    started: float = 0.0
    """Start time of its first known process, seconds of CLOCK_BOOTTIME."""
    ended: float | None = None
    """When its end was detected, seconds of CLOCK_BOOTTIME; None while it runs. Reported for one more minute."""
    slots: tuple[str, ...] = ()
    """PCI addresses of the GPUs that it has or had open."""
    processes: tuple[WorkloadProcess, ...] = ()
    """Its processes that currently have a GPU open."""
    group: str = ""
    """Path of its control group, as this process sees it; empty for a session, or without one."""
    oom_kills: int | None = None
    """OOM kills in its control group since its start; None if they cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadsFacts:
    """One pass over what runs on the GPUs."""

    collector: ClassVar[str] = "workloads"
    workloads: tuple[Workload, ...] = ()
    """In the order of their names."""
    left_out: int = 0
    """Workloads and processes beyond the limits of this collector."""
