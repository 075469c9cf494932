"""What is known at one instant: the newest observation of each collector and the newest facts that are still fresh."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gpuwarden_collectors.base import Observation, PassOutcome
from gpuwarden_collectors.facts import GpuAnswer, GpuFacts, NvmlFacts, PciDevice, PciFacts, PciKind, Stamp

Facts = TypeVar("Facts")


@dataclass(frozen=True, slots=True)
class Seen(Generic[Facts]):
    """One collector: its newest pass, whatever came of it, and its newest facts with the time they were read."""

    latest: Observation[Facts] | None = None
    facts: Facts | None = None
    at: Stamp | None = None

    def after(self, observation: Observation[Facts]) -> Seen[Facts]:
        if observation.outcome is PassOutcome.OBSERVED:
            return Seen(observation, observation.facts, observation.finished)
        if observation.outcome is PassOutcome.ABSENT:
            return Seen(observation, None, observation.finished)
        return Seen(observation, self.facts, self.at)

    def fresh(self, now: Stamp, within: float) -> Facts | None:
        if self.facts is None or self.at is None or now.boottime - self.at.boottime > within:
            return None
        return self.facts

    @property
    def outcome(self) -> PassOutcome | None:
        return None if self.latest is None else self.latest.outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The site's choices. Seconds. The graces are what a driver reload, a GPU reset or a MIG change takes, and a slow boot."""

    expected_gpus: int | None = None
    nvml_fresh_for: float = 15.0
    pci_fresh_for: float = 30.0
    missing_grace: float = 30.0
    driver_grace: float = 120.0
    boot_grace: float = 600.0
    unresponsive_after: float = 20.0
    unresponsive_misses: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The host as last seen. `troubles`: what the daemon itself cannot do, by what (`ledger`, `kernel_log`): message."""

    boot_id: str
    nvml: Seen[NvmlFacts] = field(default_factory=Seen)
    pci: Seen[PciFacts] = field(default_factory=Seen)
    troubles: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sight:
    """A view at `now`, with stale facts already dropped: what detectors look at.

    `gpus`: by slot, what NVML says, empty when NVML is not fresh. `devices`: the GPUs on the PCI bus by slot, None when
    the bus could not be observed. A device bound to a foreign driver (vfio) is in `devices` but belongs to somebody else.
    """

    now: Stamp
    rules: Rules
    view: View
    nvml: NvmlFacts | None
    gpus: Mapping[str, GpuFacts]
    devices: Mapping[str, PciDevice] | None

    @classmethod
    def of(cls, view: View, rules: Rules, now: Stamp) -> Sight:
        nvml = view.nvml.fresh(now, rules.nvml_fresh_for)
        pci = view.pci.fresh(now, rules.pci_fresh_for)
        gpus = {} if nvml is None else {gpu.slot: gpu for gpu in nvml.gpus if gpu.slot}
        devices = None if pci is None else {d.slot: d for d in pci.devices if d.kind is PciKind.GPU}
        if devices == {} and any(gpu.answer is GpuAnswer.OK for gpu in gpus.values()):
            devices = None  # a container's sysfs without devices: NVML's word that they answer is worth more
        return cls(now, rules, view, nvml, gpus, devices)


OUR_DRIVERS = ("nvidia", "", "nouveau")
"""Drivers under which a GPU is ours to expect: the vendor's, none yet, and the one that is replaced by it."""


def foreign(device: PciDevice | None) -> bool:
    """Bound to a driver that hands the GPU to somebody else (vfio-pci, a hypervisor's): not expected here."""
    return device is not None and device.driver not in OUR_DRIVERS
