"""Decides whether a node may be tested now: it is idle, stays on anyway, and nobody is about to use it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpuwarden.features.active_test.idle.power_saving import suspended_after
from gpuwarden_collectors.slurm.facts import NodeFacts
from gpuwarden_collectors.slurm.settings import PartitionSettings

_HARMLESS = frozenset({"dynamic_norm", "dynamic_future"})
"""Flags of an idle node that do not concern its use. With any other flag, known here or not, the node is not tested."""


def unfit(
    node: NodeFacts, keys: Mapping[str, str], partitions: Sequence[PartitionSettings], suspend_time: str = ""
) -> str:
    """Return why the node gets no test; empty if it may. `suspend_time`: the controller's value, if it shows one."""
    return next(_reasons(node, suspended_after(node, keys, partitions, suspend_time)), "")


def _reasons(node: NodeFacts, limit: str) -> Iterator[str]:
    if "cloud" in node.flags:
        yield f"{node.name} is a node of a cloud, which a test would keep running"
    if node.base != "idle" or not node.flags <= _HARMLESS:
        yield f"{node.name} is {node.state}, not idle"
    if not node.gpus:
        yield f"Slurm has no GPU of {node.name}: add Gres=gpu:N to its line in slurm.conf, or to --conf of slurmd -Z"
    if limit:
        yield (
            f"power saving switches {node.name} off when it is idle ({limit}), and a test would keep it on: "
            "add it to SuspendExcNodes to have it tested"
        )
