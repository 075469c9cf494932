"""Maps pods to GPUs, by the device ids that kubelet allocated.

A device plugin chooses its ids: UUIDs of GPUs and MIG devices (NVIDIA), the device file and the number of the GPU
instance (`nvidia0`, `nvidia0/gi3` of GKE), or indices. Shared devices end in `::N` (NVIDIA) or `/vgpuN` (GKE).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import field

from gpuwarden.health.model import Evidence, Pin
from gpuwarden.health.view import Sight, View
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import GpuFacts, NvmlFacts, Stamp
from gpuwarden_collectors.kubelet.facts import PodContainer, PodsFacts

KEPT = 60.0
"""Seconds for which an answer of kubelet counts: six polls, longer than a restart of kubelet takes."""
CONTAINERS_MOST = 8
"""Most containers per GPU or instance, since each one duplicates its series."""
_SHARED = re.compile(r"::\d+$|/vgpu\d+$")
Device = tuple[str, int | None]
"""Slot of a GPU, and a GPU instance of it; None: the GPU as a whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodsOnGpus:
    """The pods and containers on the GPUs of this node, from kubelet's answer."""

    containers: Mapping[Device, tuple[PodContainer, ...]] = field(default_factory=dict)
    """By GPU or instance, at most `CONTAINERS_MOST` each."""
    matched: int = 0
    """Number of ids that match a device here."""
    unmatched: tuple[str, ...] = ()
    """Distinct ids that match none."""
    claims: int = 0
    """Containers with devices of Dynamic Resource Allocation, which are not looked up."""

    def on_gpu(self, slot: str) -> tuple[PodContainer, ...]:
        """Return the containers on the GPU in `slot` or on an instance of it."""
        placed = (
            container for (at, _), containers in self.containers.items() if at == slot for container in containers
        )
        return tuple(dict.fromkeys(placed))


def pods_on_gpus(pins: Mapping[str, Pin], view: View, nvml: NvmlFacts | None, now: Stamp) -> PodsOnGpus | None:
    """Return the pods of each GPU; None without an answer of kubelet within `KEPT`. Pins identify lost GPUs."""
    facts = view.seen(PodsFacts).fresh(now, KEPT)
    return None if facts is None else matched(facts, pins, nvml)


def matched(facts: PodsFacts, pins: Mapping[str, Pin], nvml: NvmlFacts | None) -> PodsOnGpus:
    devices = _known(pins, () if nvml is None else nvml.gpus)
    containers: dict[Device, dict[PodContainer, None]] = {}
    unmatched: dict[str, None] = {}
    count = 0
    for container in facts.containers:
        for name in container.devices:
            device = devices.get(_SHARED.sub("", name).lower())
            if device is None:
                unmatched[name] = None
            else:
                count += 1
                containers.setdefault(device, {})[container] = None
    most = {device: tuple(on_device)[:CONTAINERS_MOST] for device, on_device in containers.items()}
    return PodsOnGpus(containers=most, matched=count, unmatched=tuple(unmatched), claims=facts.claims)


def with_pods(
    evidence: Evidence, before: Evidence | None, sight: Sight, pins: Mapping[str, Pin], slot: str
) -> Evidence:
    """Return the evidence with the pods (`namespace/name`) on the GPU at the first sighting; see `jobs.under`."""
    if not slot or (before is not None and "pod" not in before):
        return evidence
    if before is not None:
        return {**evidence, "pod": before["pod"]}
    placed = pods_on_gpus(pins, sight.view, sight.nvml, sight.now)
    names = () if placed is None else dict.fromkeys(f"{pod.namespace}/{pod.pod}" for pod in placed.on_gpu(slot))
    return {**evidence, "pod": " ".join(list(names)[:CONTAINERS_MOST])} if names else evidence


def _known(pins: Mapping[str, Pin], gpus: Iterable[GpuFacts]) -> dict[str, Device]:
    """Return the devices by each id that a plugin may use, in lower case."""
    devices: dict[str, Device] = {pin.uuid.lower(): (slot, None) for slot, pin in pins.items() if pin.uuid}
    for gpu in gpus:
        if not gpu.slot:
            continue
        file = f"nvidia{gpu.index if gpu.minor is None else gpu.minor}"
        for name in filter(None, (gpu.uuid.lower(), file, str(gpu.index))):
            devices[name] = (gpu.slot, None)
        for mig in gpu.mig:
            instance = (gpu.slot, mig.gpu_instance)
            devices[f"{file}/gi{mig.gpu_instance}"] = instance
            if mig.uuid:
                devices[mig.uuid.lower()] = instance
    return devices
