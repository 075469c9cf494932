"""The keys of `[slurm]`: which node this is, how Slurm is asked, and with whom it shares the breaker's budget."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpuwarden.base.durations import format_duration
from gpuwarden.config.slurm_jobs import SlurmJobOptions, slurm_job_misfits
from gpuwarden_collectors.slurm.errors import TIMEOUT
from gpuwarden_collectors.slurm.nodes import is_node_name, is_partition_name

Misfit = tuple[tuple[str, ...], str]


@dataclass(frozen=True, slots=True)
class SlurmOptions(SlurmJobOptions):
    """Durations in seconds.

    `node` empty: SLURMD_NODENAME, else what Slurm calls this host. `conf` None: where Slurm looks for slurm.conf. `folder`:
    of Slurm's commands, None for PATH. `partitions`: whose nodes share the breaker's budget; none for the largest that
    this node is in. `timeout` is for a call. `detail`: the field of the node that says more than the reason does.
    """

    enabled: bool = False
    node: str = ""
    conf: Path | None = None
    folder: Path | None = None
    partitions: tuple[str, ...] = ()
    timeout: float = TIMEOUT
    detail: Literal["none", "comment", "extra"] = "none"


_TIMEOUT = (1.0, 120.0)


def slurm_misfits(slurm: SlurmOptions) -> Iterator[Misfit]:
    """Values that are of the right kind and yet wrong, by their keys."""
    least, most = _TIMEOUT
    if not least <= slurm.timeout <= most:
        allowed = f"{format_duration(least)} to {format_duration(most)}"
        why = "a controller that hangs is given up after MessageTimeout, 10s by default"
        yield ("slurm.timeout",), f"expected {allowed}, found {format_duration(slurm.timeout)}: {why}"
    if slurm.node and not is_node_name(slurm.node):
        yield ("slurm.node",), f"expected the NodeName of one node, found {slurm.node[:60]!r}"
    for name in slurm.partitions:
        if not is_partition_name(name):
            yield ("slurm.partitions",), f"expected names of partitions, found {name[:60]!r}"
    yield from slurm_job_misfits(slurm)
