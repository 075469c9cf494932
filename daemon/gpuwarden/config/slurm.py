"""The keys of `[slurm]`: which node this is, how Slurm is asked, and with whom it shares the breaker's budget."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpuwarden_collectors.options import Misfit, bounded
from gpuwarden_collectors.slurm.errors import TIMEOUT
from gpuwarden_collectors.slurm.nodes import is_node_name, is_partition_name


@dataclass(frozen=True, slots=True)
class SlurmOptions:
    """Slurm ([slurm.md](slurm.md))."""

    enabled: bool = False
    """Take this node out of Slurm, and bring it back."""
    node: str = ""
    """Its NodeName. Empty: SLURMD_NODENAME, else what Slurm calls this host."""
    conf: Path | None = None
    """slurm.conf. Not set: where Slurm looks for it."""
    folder: Path | None = None
    """The folder of Slurm's commands. Not set: those of PATH."""
    partitions: tuple[str, ...] = ()
    """Whose nodes share the breaker's budget. Empty: the largest partition that this node is in."""
    timeout: float = bounded(
        TIMEOUT, 1.0, 120.0, "a controller that hangs is given up after MessageTimeout, 10s by default"
    )
    """Time for a call."""
    detail: Literal["none", "comment", "extra"] = "none"
    """The field of the node that is given more than the reason holds."""
    drain_by: Literal["daemon", "hook"] = "daemon"
    """Who begins a drain. `hook`: the daemon drains only when HealthCheckProgram has asked for it."""
    on_stale: Literal["ignore", "refuse"] = "ignore"
    """What follows from a verdict that is missing or old: nothing, or the prolog refuses jobs."""
    jobs: bool = True
    """Read which jobs are here."""
    jobs_interval: float = bounded(
        15.0, 1.0, 120.0, "what holds a GPU after its job is to be found before the next one starts"
    )
    """How often."""
    job_mapping_dir: Path | None = None
    """Where dcgm-exporter looks for the jobs of each GPU, if it is to be written there."""


def slurm_misfits(slurm: SlurmOptions) -> Iterator[Misfit]:
    """Values that are of the right kind and yet wrong, by their keys."""
    if slurm.node and not is_node_name(slurm.node):
        yield ("slurm.node",), f"expected the NodeName of one node, found {slurm.node[:60]!r}"
    for name in slurm.partitions:
        if not is_partition_name(name):
            yield ("slurm.partitions",), f"expected names of partitions, found {name[:60]!r}"
    if slurm.job_mapping_dir is not None and not slurm.job_mapping_dir.is_absolute():
        yield ("slurm.job_mapping_dir",), f"expected an absolute path, found {str(slurm.job_mapping_dir)[:60]!r}"
