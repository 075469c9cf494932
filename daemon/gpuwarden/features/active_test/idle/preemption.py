"""Checks whether every other job of a node preempts the test's job at once: what slurm.conf lacks for that. Pure.

The test takes all GPUs of the node. Without preemption a job that needs one of them would wait until the test ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpuwarden_collectors.slurm.settings import PartitionSettings, seconds, value_of

ENDING = ("cancel", "requeue")
"""Modes in which a preempted job ends. A suspended job would keep its memory on the GPUs."""
_TYPE = "preempt/partition_prio"


def missing(
    keys: Mapping[str, str], partitions: Sequence[PartitionSettings], name: str, node: str, longest: float
) -> list[str]:
    """Return the lines of slurm.conf that are missing or must change, each with the present value. Empty: partition
    `name` can be used.

    `longest`: seconds that a test may take.
    """
    return [*_cluster(keys), *_partition(partitions, name, node, longest)]


def _cluster(keys: Mapping[str, str]) -> Iterator[str]:
    if (preempt_type := value_of(keys, "PreemptType")) != _TYPE:
        yield f"PreemptType={_TYPE} (found {preempt_type or 'none'})"
    if "off" in _modes(mode := value_of(keys, "PreemptMode") or "OFF"):
        yield (
            f"PreemptMode=CANCEL (found {mode}); with PreemptMode=OFF at each partition whose jobs are not to be preempted"
        )
    exempt = value_of(keys, "PreemptExemptTime")
    if seconds(exempt):
        yield f"PreemptExemptTime=00:00:00 (found {exempt}, for which each job is safe from preemption)"


def _partition(partitions: Sequence[PartitionSettings], name: str, node: str, longest: float) -> Iterator[str]:
    line = f"PartitionName={name}"
    own = next((partition for partition in partitions if partition.name == name), None)
    others = [partition for partition in partitions if partition.name != name and partition.has(node)]
    if own is None:
        yield f"{line} Nodes={node} PriorityTier=0 PreemptMode=CANCEL GraceTime=0 (there is no such partition)"
    else:
        yield from _unfit(own, line, node, longest)
    tier = 0 if own is None else own.tier
    if tier > 0:
        yield f"{line} PriorityTier=0 (found {tier})"
    if same := [other for other in others if other.tier <= 0]:
        names = ", ".join(partition.name for partition in same[:4])
        yield f"PartitionName={same[0].name} PriorityTier=1 (found 0 at {names}: not above {name})"


def _unfit(own: PartitionSettings, line: str, node: str, longest: float) -> Iterator[str]:
    if not own.has(node):
        yield f"{line} Nodes={own.nodes + ',' if own.nodes else ''}{node} (it does not have {node})"
    if not _modes(own.preempt_mode) & set(ENDING):
        yield f"{line} PreemptMode=CANCEL (found {own.preempt_mode.upper() or 'none'})"
    if own.grace_time:
        yield f"{line} GraceTime=0 (found {own.grace_time}, for which every job would wait)"
    if own.max_time is not None and own.max_time < longest:
        yield f"{line} MaxTime={-(-longest // 60):.0f} (found {own.max_time:.0f} s, less than a test may take)"
    if not own.up:
        yield f"{line} State=UP"


def _modes(text: str) -> set[str]:
    return set(text.lower().split(","))
