"""The keys of `[kubernetes]`: which node this is, how its API server is asked, and what is written there."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpuwarden.base.durations import format_duration

Misfit = tuple[tuple[str, ...], str]


@dataclass(frozen=True, slots=True)
class KubernetesOptions:
    """Durations in seconds.

    `node` empty: NODE_NAME of the environment, else the name of this host in small letters. `kubeconfig` None: the pod's own
    service account, in `service_account`. `key` is that of taint and label. `pool`: the label selector of the nodes that
    share the breaker's budget. `osmo`: also the condition that NVIDIA OSMO's rules can read. `heartbeat` of the condition.
    """

    enabled: bool = False
    node: str = ""
    kubeconfig: Path | None = None
    context: str = ""
    service_account: Path = Path("/var/run/secrets/kubernetes.io/serviceaccount")
    key: str = "gpuwarden.io/failure"
    effect: Literal["NoSchedule", "PreferNoSchedule"] = "NoSchedule"
    cordon: bool = False
    condition: bool = True
    osmo: bool = False
    pool: str = "nvidia.com/gpu.present=true"
    timeout: float = 10.0
    heartbeat: float = 300.0


EXTRA = "pip install 'gpuwarden[kubernetes]'"
_PACKAGE = "lightkube"
_DOMAIN = r"(?=[^/]{1,253}(?:/|$))[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_KEY = re.compile(_DOMAIN + r"/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_NODE = re.compile(_DOMAIN)
_SELECTOR_MOST = 500
_DURATIONS = (
    ("timeout", 1.0, 60.0, "an API server that hangs must not hold up what is wanted"),
    ("heartbeat", 30.0, 3_600.0, "each is a write for every node of the cluster"),
)


def kubernetes_misfits(options: KubernetesOptions) -> Iterator[Misfit]:
    """Values that are of the right kind and yet wrong, by their keys; and what is needed and not installed."""
    if options.enabled and importlib.util.find_spec(_PACKAGE) is None:
        yield ("kubernetes.enabled",), f"needs the package {_PACKAGE}, which is not installed: {EXTRA}"
    for key, least, most, why in _DURATIONS:
        value = getattr(options, key)
        if not least <= value <= most:
            allowed = f"{format_duration(least)} to {format_duration(most)}"
            yield (f"kubernetes.{key}",), f"expected {allowed}, found {format_duration(value)}: {why}"
    if options.node and not _NODE.fullmatch(options.node):
        yield ("kubernetes.node",), f"expected the name of a Node, found {options.node[:60]!r}"
    if not _KEY.fullmatch(options.key):
        yield ("kubernetes.key",), f"expected prefix/name as of a label, found {options.key[:60]!r}"
    if f".{options.key.split('/')[0]}".endswith((".kubernetes.io", ".k8s.io")):
        yield ("kubernetes.key",), f"expected a prefix of your own, found {options.key[:60]!r}: that is Kubernetes' own"
    if not options.pool.isprintable() or len(options.pool) > _SELECTOR_MOST:
        yield ("kubernetes.pool",), f"expected a label selector, found {options.pool[:60]!r}"
