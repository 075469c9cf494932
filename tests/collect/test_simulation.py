"""The simulated host: what `gpuwarden inject` does to it, and what it says of that."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwarden.collect.simulation import Simulation
from gpuwarden_collectors.nvml.simulated_faults import Fault, load
from gpuwarden_collectors.nvml.simulated_gpu import simulated_slot
from gpuwarden_collectors.pci import PciCollector


@pytest.fixture
def simulation(tmp_path: Path) -> Simulation:
    simulation = Simulation(tmp_path / "simulation", 2)
    simulation.prepare()
    return simulation


def responding(simulation: Simulation) -> list[str]:
    devices = PciCollector(simulation.sysfs, again_after=0.0).read().devices
    return [device.slot for device in devices if device.responds]


def test_with_xid_79_the_gpu_is_lost_to_nvml_and_on_the_bus(simulation: Simulation) -> None:
    text = simulation.inject(["xid", "79"], 1, 5.0)
    assert load(simulation.directory) == (Fault("xid", 1, 79, 5.0), Fault("lost", 1, at=5.0))
    assert responding(simulation) == [simulated_slot(0)]
    assert text == f"injected into GPU 1 ({simulated_slot(1)}): xid 79, and lost"
    simulation.inject(["clear"], None, 6.0)
    assert responding(simulation) == [simulated_slot(0), simulated_slot(1)]


def test_with_another_xid_the_gpu_stays(simulation: Simulation) -> None:
    text = simulation.inject(["xid", "95"], 1, 5.0)
    assert load(simulation.directory) == (Fault("xid", 1, 95, 5.0),)
    assert responding(simulation) == [simulated_slot(0), simulated_slot(1)]
    assert text == f"injected into GPU 1 ({simulated_slot(1)}): xid 95"
