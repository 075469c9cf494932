"""Facts about pods: which containers kubelet has given which GPUs."""

from __future__ import annotations

from typing import ClassVar

from gpuwarden_collectors.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PodContainer:
    """A container that has GPUs."""

    namespace: str
    pod: str
    """Name of the pod."""
    container: str
    """Name of the container in it."""
    devices: tuple[str, ...] = ()
    """Ids of its GPUs, as the device plugin names them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodsFacts:
    """One answer of kubelet."""

    collector: ClassVar[str] = "pods"
    containers: tuple[PodContainer, ...] = ()
    """Containers with GPUs of a device plugin."""
    claims: int = 0
    """Containers with devices of Dynamic Resource Allocation. Only the API server knows which devices these are."""
