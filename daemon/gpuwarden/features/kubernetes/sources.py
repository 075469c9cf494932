"""The source for labels of pods: kubelet's socket, which lists the GPUs of each pod."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwarden.collect.schedule import LoopCollector, Source, polled
from gpuwarden.config.model import Config
from gpuwarden.features.kubernetes.options import KubernetesOptions
from gpuwarden_collectors.base import Clock, host_clock
from gpuwarden_collectors.kubelet.facts import PodsFacts

if TYPE_CHECKING:  # loaded only with pods
    from gpuwarden_collectors.kubelet.client import PodsReader

PODS_EVERY, PODS_DEADLINE = 10.0, 2.0
"""Seconds. kubelet answers from memory, in milliseconds, and accepts 100 requests a second from all clients."""


def source(config: Config, clock: Clock) -> Source | None:
    options = config.of(KubernetesOptions)
    if not options.pod_labels:
        return None
    pods = LoopCollector(PodsFacts.collector, pods_reader(options, clock).read, PODS_DEADLINE, clock)
    return polled(pods.name, PODS_EVERY, PODS_DEADLINE, pods.observe)


def pods_reader(options: KubernetesOptions, clock: Clock = host_clock) -> PodsReader:
    """Make the reader of kubelet's socket."""
    from gpuwarden_collectors.kubelet.client import PodsReader  # noqa: PLC0415 - gRPC: 5 MiB, only with pods

    return PodsReader(options.kubelet_socket, clock)
