"""Slurm's state of a node in the terms of policy, and which nodes count in the budget: tables, without a Slurm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuwarden.config.model import Config
from gpuwarden.features.slurm.node_state import fleet_count_of, largest, node_state_of
from gpuwarden.features.slurm.options import misfits
from gpuwarden.policy.model import Flag, Held, Owner, Why
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.slurm.facts import NodeFacts, PartitionFacts
from gpuwarden_collectors.slurm.options import SlurmOptions

NOW = Stamp(100.0, 1_700_000_100.0)
FAILURE = "gpuwarden: failure gpu=3 xid=79"
TERMINATION = "gpuwarden: termination boot=1b4e28ba instance=i-0af01c23"


def node(state: str = "idle", reason: str = "", *, name: str = "n1", at: float | None = None, **more: Any) -> NodeFacts:
    base, *flags = state.split("+")
    at = 1_700_000_000.0 if reason and at is None else at
    facts = {"partitions": ("gpu",), "gpus": 8, **more}
    return NodeFacts(name=name, base=base, flags=frozenset(flags), reason=reason, reason_at=at, **facts)


@pytest.mark.parametrize(
    ("state", "reason", "owner", "why", "flags"),
    [
        ("idle", "", Owner.NONE, None, set()),
        ("allocated+completing+not_responding+planned+reserved+cloud", "", Owner.NONE, None, set()),
        ("idle", FAILURE, Owner.NONE, None, set()),  # a reason outlives what it was given for
        ("idle+drain", FAILURE, Owner.OURS, Why.FAILURE, set()),
        ("mixed+drain", TERMINATION, Owner.OURS, Why.TERMINATION, set()),
        ("idle+drain", "gpuwarden: operator by=alice new fan", Owner.OURS, Why.OPERATOR, set()),
        ("idle+drain", "", Owner.FOREIGN, None, set()),
        ("idle+drain", "Kill task failed", Owner.FOREIGN, None, set()),
        ("idle+drain", "gpuwarden: something of a later release", Owner.FOREIGN, None, set()),
        ("idle+drain", "see gpuwarden: failure", Owner.FOREIGN, None, set()),
        ("idle+fail", FAILURE, Owner.FOREIGN, None, set()),  # FAIL took the place of our DRAIN
        ("down", "Not responding", Owner.FOREIGN, None, {Flag.DOWN}),
        ("down", TERMINATION, Owner.OURS, Why.TERMINATION, {Flag.DOWN}),
        ("down+drain", FAILURE, Owner.OURS, Why.FAILURE, {Flag.DOWN}),
        ("idle+maintenance+reserved", "", Owner.NONE, None, {Flag.MAINTENANCE}),
        ("idle+drain+reboot_requested", FAILURE, Owner.OURS, Why.FAILURE, {Flag.REBOOT}),
        ("idle+reboot_issued", "", Owner.NONE, None, {Flag.REBOOT}),
        ("idle+drain+invalid_reg", "gres/gpu count reported lower", Owner.FOREIGN, None, {Flag.INVALID}),
        ("idle+cloud+powered_down", "", Owner.NONE, None, {Flag.POWER}),
    ],
)
def test_states_and_reasons(state: str, reason: str, owner: Owner, why: Why | None, flags: set[Flag]) -> None:
    node_state = node_state_of(node(state, reason), NOW, pool=3)
    assert (node_state.owner, node_state.why) == (owner, why)
    assert node_state.flags == flags
    assert node_state.schedulable is (owner is Owner.NONE and not flags)


@pytest.mark.parametrize(
    ("state", "starts_jobs"),
    [
        ("mixed+reboot_requested", True),
        ("idle+planned+reboot_requested", True),
        ("allocated+completing+power_down", True),
        ("idle+power_down", False),  # it is switched off at once
        ("mixed+power_down+powering_up", False),  # a drain would end its jobs
        ("mixed+maintenance+reboot_requested", False),
    ],
)
def test_a_reboot_or_power_down_that_waits_for_jobs_lets_new_ones_start(state: str, *, starts_jobs: bool) -> None:
    node_state = node_state_of(node(state, "reboot requested"), NOW, pool=3)
    assert node_state.schedulable is starts_jobs
    assert node_state.flags & {Flag.REBOOT, Flag.POWER}


@pytest.mark.parametrize(
    "suffix",
    ["Not responding", "reboot issued", "reboot complete", "Low RealMemory (reported:1 < 100.00% of configured:2)"],
)
def test_a_suffix_that_slurm_appends_from_23_02_on_is_separated_from_gpuwardens_reason(suffix: str) -> None:
    """Written from its source (src/slurmctld/node_mgr.c): " : " and the message."""
    node_state = node_state_of(node("down+drain", f"{FAILURE} : {suffix}"), NOW, pool=None)
    assert (node_state.owner, node_state.reason, node_state.suffix) == (Owner.OURS, FAILURE, suffix)


def test_a_termination_names_boot_and_instance() -> None:
    node_state = node_state_of(node("idle+drain", TERMINATION), NOW, pool=None)
    assert (node_state.boot, node_state.instance, node_state.since) == ("1b4e28ba", "i-0af01c23", 1_700_000_000.0)


def test_only_failures_of_gpuwarden_are_counted() -> None:
    members = (
        node(name="n1"),
        node("idle+drain", FAILURE, name="n2", at=20.0),
        node("down+drain", f"{FAILURE} : Not responding", name="n3", at=10.0),
        node("idle+drain", TERMINATION, name="n4"),
        node("idle+drain", "new fan", name="n5"),
        node("idle+fail", FAILURE, name="n6"),
        node("idle", FAILURE, name="n7"),
        node("idle", name="cpu1", gpus=0),
    )
    fleet_count = fleet_count_of(members[0], [PartitionFacts(name="gpu", members=members)], 30.0)
    assert sorted(fleet_count.held) == [Held(10.0, "n3"), Held(20.0, "n2")]
    assert (fleet_count.node, fleet_count.pool, fleet_count.now) == ("n1", 7, 30.0)


def test_nodes_that_hyperpod_is_to_repair_count_until_it_has() -> None:
    members = (
        node(name="n1"),
        node("idle+fail", "Action:Reboot", name="n2", at=20.0),
        node("down+fail", "Action:Replace : Not responding", name="n3", at=10.0),
        node("idle+fail", "Action:Retire", name="n4"),
        node("idle+drain", "Action:Replace", name="n5"),
        node("idle", "Action:Replace", name="n6"),
    )
    fleet_count = fleet_count_of(members[0], [PartitionFacts(name="gpu", members=members)], 30.0)
    assert sorted(fleet_count.held) == [Held(10.0, "n3"), Held(20.0, "n2")]


def test_the_nvlink_domain_of_an_excluded_node_is_read_from_its_reason() -> None:
    bad = node("idle+drain", "gpuwarden: failure domain=8f3c6a1e.0 gpu=3 xid=79", name="n2", at=20.0)
    count = fleet_count_of(node(), [PartitionFacts(name="gpu", members=(node(), bad))], 30.0)
    assert count.held == (Held(20.0, "n2", "8f3c6a1e.0"),)


def test_a_node_in_two_partitions_of_the_pool_counts_once() -> None:
    bad = node("idle+drain", FAILURE, name="n2")
    parts = [PartitionFacts(name=name, members=(node(), bad)) for name in ("a", "b")]
    fleet_count = fleet_count_of(node(), parts, 0.0)
    assert (fleet_count.pool, len(fleet_count.held)) == (2, 1)


def test_nodes_of_a_cluster_without_gpu_gres_share_the_budget_all() -> None:
    members = tuple(node(name=f"n{n}", gpus=0) for n in range(5))
    assert fleet_count_of(members[0], [PartitionFacts(name="gpu", members=members)], 0.0).pool == 5


def test_all_nodes_of_a_partition_choose_the_same_pool() -> None:
    small = PartitionFacts(name="a", members=(node(),))
    same = PartitionFacts(name="b", members=(node(), node(name="n2")))
    big = PartitionFacts(name="c", members=(node(), node(name="n2")))
    assert largest([big, small, same]).name == largest([same, big, small]).name == "b"


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"node": "n[1-3]"}, "slurm.node"),
        ({"node": "ALL"}, "slurm.node"),
        ({"partitions": ("gpu", "a,b")}, "slurm.partitions"),
        ({"job_mapping_dir": Path("hpc")}, "slurm.job_mapping_dir"),
    ],
)
def test_values_that_slurm_would_take_otherwise_are_faults(options: dict[str, Any], key: str) -> None:
    assert [keys for keys, _ in misfits(Config(slurm=SlurmOptions(**options)))] == [(key,)]


def test_the_defaults_fit() -> None:
    assert list(misfits(Config(slurm=SlurmOptions(enabled=True, node="gpu-007", partitions=("gpu",))))) == []
