"""Facts about nodes in Slurm's terms, in lower case. No verdicts."""

from __future__ import annotations

from dataclasses import field

from gpuwarden_collectors.dataclass import dataclass

SUSPENDED, JOBS_UNKNOWN = "suspended", "jobs_unknown"
"""Flags that `nodes.with_suspended_jobs` adds to those of Slurm, which shows a node as idle if all its jobs are
suspended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """One node as Slurm reports it."""

    name: str
    """Slurm's name of the node."""
    base: str
    """One of idle, mixed, allocated, down, error, future, unknown."""
    flags: frozenset[str] = frozenset()
    """The flags after the base state (drain, maint, reboot …)."""
    reason: str = ""
    """Text of the reason; empty if there is none."""
    reason_at: float | None = None
    """When it was set, Unix time by the controller's clock."""
    partitions: tuple[str, ...] = ()
    """The partitions that the node is in."""
    gpus: int = 0
    """Number of its GRES of the name gpu."""
    comment: str = ""
    extra: str = ""
    """Extra field of the node."""

    @property
    def state(self) -> str:
        """The state as Slurm writes it, with flags in alphabetical order."""
        return "+".join((self.base, *sorted(self.flags)))

    @property
    def is_down(self) -> bool:
        return self.base in ("down", "error", "future")

    @property
    def is_out(self) -> bool:
        """True if the node is down, drained or failing, for any reason, and gets no new jobs."""
        return self.is_down or not self.flags.isdisjoint(("drain", "fail"))

    @property
    def has_gpu(self) -> bool:
        return self.gpus > 0

    @property
    def says_jobs(self) -> bool:
        """True if the state shows running jobs and no completing one."""
        return self.base in ("mixed", "allocated") and "completing" not in self.flags

    @property
    def is_empty(self) -> bool:
        """True if no job runs, ends or is suspended on the node, also if it is down, from which it may return."""
        return self.base in ("idle", "down") and self.flags.isdisjoint(("completing", SUSPENDED, JOBS_UNKNOWN))


@dataclass(frozen=True, slots=True)
class NodeTexts:
    """The text fields of a node."""

    name: str
    """Slurm's name of the node."""
    comment: str
    extra: str
    """Extra field of the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    name: str
    members: tuple[NodeFacts, ...] = field(default=())
    """Its nodes by name, each with this partition only."""
