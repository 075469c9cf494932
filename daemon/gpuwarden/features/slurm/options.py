"""Faults and effect of `[slurm]` for this node. The collector, which also uses its keys, defines them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from gpuwarden.features import Excludes
from gpuwarden_collectors.options import Misfit
from gpuwarden_collectors.slurm.nodes import is_node_name, is_partition_name

if TYPE_CHECKING:
    from gpuwarden.config.model import Config


def misfits(config: Config) -> Iterator[Misfit]:
    """Yield values that have the right type but are wrong, by their keys."""
    slurm = config.slurm
    if slurm.node and not is_node_name(slurm.node):
        yield ("slurm.node",), f"expected the NodeName of one node, found {slurm.node[:60]!r}"
    for name in slurm.partitions:
        if not is_partition_name(name):
            yield ("slurm.partitions",), f"expected names of partitions, found {name[:60]!r}"
    if slurm.job_mapping_dir is not None and not slurm.job_mapping_dir.is_absolute():
        yield ("slurm.job_mapping_dir",), f"expected an absolute path, found {str(slurm.job_mapping_dir)[:60]!r}"


def excludes(config: Config) -> Excludes:
    return Excludes.BY_REGISTER if config.slurm.enabled else Excludes.NOT


TABLES: Mapping[str, type] = {}
