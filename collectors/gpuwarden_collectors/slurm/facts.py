"""Nodes as Slurm reports them: its terms in lower case, and no judgement."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """`base` is one of idle, mixed, allocated, down, error, future, unknown; `flags` all that follow it (drain, …).

    `reason` is empty if there is none, `reason_at` is Unix time by the controller's clock, `reason_by` the user's name.
    `partitions`: those that it is in. `has_gpu`: it has a GRES of the name gpu.
    """

    name: str
    base: str
    flags: frozenset[str] = frozenset()
    reason: str = ""
    reason_at: float | None = None
    reason_by: str = ""
    partitions: tuple[str, ...] = ()
    has_gpu: bool = False
    comment: str = ""
    extra: str = ""

    @property
    def state(self) -> str:
        """As Slurm writes it; flags in the order of the alphabet."""
        return "+".join((self.base, *sorted(self.flags)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """`members` by name, each with this partition only."""

    name: str
    members: tuple[NodeFacts, ...] = field(default=())
