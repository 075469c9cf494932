"""Which pods have which GPU: the device ids that kubelet gave out, found among the GPUs that are here.

A device plugin chooses its ids: UUIDs of GPUs and MIG devices (NVIDIA's), the name of the device file and the number of the GPU instance
(GKE's `nvidia0`, `nvidia0/gi3`), indices; what is shared has `::N` (NVIDIA's replicas) or `/vgpuN` (GKE's) behind it.
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
"""Seconds for which an answer of kubelet counts: six questions, which is longer than its restart takes."""
CONTAINERS_MOST = 8
"""Most containers of one GPU or instance, since each one copies its series."""
_SHARED = re.compile(r"::\d+$|/vgpu\d+$")
Device = tuple[str, int | None]
"""Slot of a GPU, and a GPU instance of it; None: the GPU as a whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodsOnGpus:
    """The pods and containers on the GPUs of this node, from kubelet's answer."""

    containers: Mapping[Device, tuple[PodContainer, ...]] = field(default_factory=dict)
    """Those that have a GPU or instance, at most `CONTAINERS_MOST` of each."""
    matched: int = 0
    """Ids that are devices here."""
    unmatched: tuple[str, ...] = ()
    """Ids that are none, each once."""
    claims: int = 0
    """Containers with devices of Dynamic Resource Allocation, which are not looked up."""

    def on_gpu(self, slot: str) -> tuple[PodContainer, ...]:
        """Containers on the GPU in `slot` or on an instance of it."""
        placed = (
            container for (at, _), containers in self.containers.items() if at == slot for container in containers
        )
        return tuple(dict.fromkeys(placed))


def pods_on_gpus(pins: Mapping[str, Pin], view: View, nvml: NvmlFacts | None, now: Stamp) -> PodsOnGpus | None:
    """Pods of each GPU, or None if kubelet is not asked, has never answered, or not within `KEPT`. A lost GPU is known by its pin."""
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
    """Evidence with the pods, as `namespace/name`, that were on the GPU when the finding was first seen; `before` as in `jobs.under`."""
    if not slot or (before is not None and "pod" not in before):
        return evidence
    if before is not None:
        return {**evidence, "pod": before["pod"]}
    placed = pods_on_gpus(pins, sight.view, sight.nvml, sight.now)
    names = () if placed is None else dict.fromkeys(f"{pod.namespace}/{pod.pod}" for pod in placed.on_gpu(slot))
    return {**evidence, "pod": " ".join(list(names)[:CONTAINERS_MOST])} if names else evidence


def _known(pins: Mapping[str, Pin], gpus: Iterable[GpuFacts]) -> dict[str, Device]:
    """Devices by each id that a plugin may give them, in small letters."""
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
