"""Where a GPU is built in, with the vendor's bindings over the fake library: what one generation has and another lacks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpuwarden.publish.metrics.machine import MACHINE_LABELS, machine_labels
from gpuwarden_collectors.facts import GpuAnswer, Placement
from support.nvml_nodes import Node, node_in


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    with node_in(tmp_path, monkeypatch) as node:
        yield node


def test_an_h100_has_a_module_and_no_chassis(node: Node) -> None:
    node.reader.connect()
    assert [gpu.placement for gpu in node.read().gpus] == [Placement(module_id=number) for number in range(1, 9)]


def test_a_blackwell_has_chassis_slot_and_tray(node: Node) -> None:
    node.fake.write(gpus=4, generation="blackwell")
    node.reader.connect()
    assert node.gpu(1).placement == Placement(
        module_id=2, chassis_serial="1820325190123", chassis_slot=5, chassis_tray=3
    )


@pytest.mark.parametrize("clique", [4026, 0])
def test_the_cluster_is_known_once_the_gpu_is_registered_in_it(node: Node, clique: int) -> None:
    node.reader.connect()
    assert node.gpu().placement.cluster_uuid == ""
    node.fake.reading("*", "fabric_in_cluster", 1).reading("*", "fabric_clique", clique)
    assert node.gpu().placement.cluster_uuid == "00000000-0000-0000-0000-000000000001"
    labels = dict(zip(MACHINE_LABELS, machine_labels("Amazon EC2/p6", node.read()), strict=True))
    assert labels["clique"] == str(clique)
    assert labels["driver"] == "570.172.08"
    assert labels["vbios"] == "96.00.99.00.01"
    assert labels["chassis_slot"] == ""


def test_a_platform_that_answers_with_an_error_costs_no_reading(node: Node) -> None:
    node.fake.write(generation="blackwell").error("*", "nvmlDeviceGetPlatformInfo", 999).reading(
        "*", "module_id", "none"
    )
    node.reader.connect()
    facts = node.gpu()
    assert (facts.answer, facts.errors, facts.placement) == (GpuAnswer.OK, (), Placement())


def test_labels_of_gpus_that_differ_are_joined_and_of_no_driver_empty(node: Node) -> None:
    node.reader.connect()
    facts = node.read()
    first, *others = facts.gpus
    mixed = replace(facts, gpus=(replace(first, vbios="96.00.74.00.01"), *others))
    labels = dict(zip(MACHINE_LABELS, machine_labels("x", mixed), strict=True))
    assert labels["vbios"] == "96.00.74.00.01+96.00.99.00.01"
    assert machine_labels("x", None, "leaf2")[MACHINE_LABELS.index("switch")] == "leaf2"
    assert machine_labels("QEMU/pc", None) == ("QEMU/pc", *[""] * (len(MACHINE_LABELS) - 1))
