"""The keys of `[kubernetes]`: which node this is, how its API server is asked, and what is written there."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from dataclasses import field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gpuwarden.features import Excludes
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.kubelet import FOLDER, SOCKET
from gpuwarden_collectors.options import Misfit, bounded

if TYPE_CHECKING:
    from gpuwarden.config.model import Config


@dataclass(frozen=True, slots=True)
class ConditionTypes:
    """Conditions for those who repair nodes: a type for each advice, `TYPE=False` if bad is False ([kubernetes.md](../use/kubernetes.md#tell-those-who-repair))."""

    reset_gpu: str = ""
    """The GPU must be reset."""
    restart_service: str = ""
    """A service must be restarted."""
    reboot: str = ""
    """The machine must be rebooted."""
    inspect_hardware: str = ""
    """Somebody must look at the hardware."""
    contact_support: str = ""
    """The vendor must repair or replace something."""

    def by_advice(self) -> Iterator[tuple[str, str, str]]:
        """Yield each advice that has a type, with the type and its status while a repair is asked for."""
        for key in fields(self):
            kind, _, status = str(getattr(self, key.name)).partition("=")
            if kind or status:
                yield key.name, kind, status or "True"


@dataclass(frozen=True, slots=True)
class KubernetesOptions:
    """Kubernetes ([kubernetes.md](../use/kubernetes.md))."""

    enabled: bool = False
    """Exclude this node in Kubernetes with a taint, and remove the taint when it returns."""
    node: str = ""
    """The name of this host's Node. Empty: the environment variable NODE_NAME, else the name of this host in lower case."""
    kubeconfig: Path | None = None
    """The kubeconfig to use. Not set: the pod's own service account."""
    context: str = ""
    """The context of the kubeconfig. Empty: its current context."""
    service_account: Path = Path("/var/run/secrets/kubernetes.io/serviceaccount")
    """The folder of the pod's service account."""
    key: str = "gpuwarden.io/failure"
    """The key of the taint and of the label: `prefix/name`. Where the cluster autoscaler runs: [kubernetes.md](../use/kubernetes.md#autoscalers-and-deschedulers)."""
    effect: Literal["NoSchedule", "PreferNoSchedule"] = "NoSchedule"
    """The effect of the taint."""
    cordon: bool = False
    """Also mark the Node as unschedulable."""
    condition: bool = True
    """Write the verdict as a condition of the Node."""
    osmo: bool = False
    """Also write the condition that NVIDIA OSMO's rules can read."""
    slinky: bool = False
    """With `cordon`: also write the reason as the annotation from which Slinky's slurm-operator takes the drain reason."""
    conditions: ConditionTypes = field(default_factory=ConditionTypes)
    pool: str = "nvidia.com/gpu.present=true"
    """The label selector of the nodes that share the breaker's budget."""
    timeout: float = bounded(10.0, 1.0, 60.0, "an API server that hangs must not delay pending actions")
    """Time limit of a request."""
    heartbeat: float = bounded(300.0, 30.0, 3_600.0, "every node of the cluster writes this often")
    """How often the condition is written while nothing changes."""
    pod_labels: bool = False
    """Label the series and findings of a GPU with the pods that have it, as listed by kubelet. Works with and without `enabled`."""
    kubelet_socket: Path = FOLDER / SOCKET
    """kubelet's socket that lists which pods have which GPUs. Mount its folder, not the socket: kubelet creates a new socket at each start."""


EXTRA = "pip install 'gpuwarden[kubernetes]'"
_PACKAGES = {"enabled": "lightkube", "pod_labels": "grpclib"}
"""Packages that each key needs."""
_DOMAIN = r"(?=[^/]{1,253}(?:/|$))[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_KEY = re.compile(_DOMAIN + r"/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_NODE = re.compile(_DOMAIN)
_TYPE = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_KEPT = frozenset(
    """
    Ready MemoryPressure DiskPressure PIDPressure NetworkUnavailable GpuwardenHealthy
    osmo.nvidia.com/GpuHealthFailure""".split()
)
"""Types of conditions of kubelet, of the cloud's controller, and of gpuwarden itself."""
_STATUS_TAINT = "status-taint.cluster-autoscaler.kubernetes.io"
"""The cluster autoscaler expects no taint with this prefix on a new node. It is for any program's own taints."""
_SELECTOR_MOST = 500


def misfits(config: Config) -> Iterator[Misfit]:
    """Yield values that have the right type but are wrong, and missing packages, by their keys."""
    options = config.of(KubernetesOptions)
    for key, package in _PACKAGES.items():
        if getattr(options, key) and importlib.util.find_spec(package) is None:
            yield (f"kubernetes.{key}",), f"needs the package {package}, which is not installed: {EXTRA}"
    if options.node and not _NODE.fullmatch(options.node):
        yield ("kubernetes.node",), f"expected the name of a Node, found {options.node[:60]!r}"
    if not _KEY.fullmatch(options.key):
        yield ("kubernetes.key",), f"expected prefix/name as of a label, found {options.key[:60]!r}"
    prefix = options.key.split("/")[0]
    if f".{prefix}".endswith((".kubernetes.io", ".k8s.io")) and prefix != _STATUS_TAINT:
        yield ("kubernetes.key",), f"expected a prefix of your own, found {options.key[:60]!r}: that is Kubernetes' own"
    yield from _condition_misfits(options)
    if options.slinky and not options.cordon:
        message = "needs kubernetes.cordon = true: slurm-operator reads only the annotation of cordoned nodes"
        yield ("kubernetes.slinky",), message
    if not options.pool.isprintable() or len(options.pool) > _SELECTOR_MOST:
        yield ("kubernetes.pool",), f"expected a label selector, found {options.pool[:60]!r}"


def _condition_misfits(options: KubernetesOptions) -> Iterator[Misfit]:
    statuses: dict[str, str] = {}
    for advice, kind, status in options.conditions.by_advice():
        path = f"kubernetes.conditions.{advice}"
        if not _TYPE.fullmatch(kind) or status not in ("True", "False"):
            yield (path,), f"expected the type of a condition, or TYPE=False, found {f'{kind}={status}'[:60]!r}"
        if kind in _KEPT:
            yield (path,), f"expected a type of your own, found {kind}: another program keeps that"
        if statuses.setdefault(kind, status) != status:
            yield (path,), f"expected one bad status for {kind}, found True and False"


def excludes(config: Config) -> Excludes:
    return Excludes.BY_REGISTER if config.of(KubernetesOptions).enabled else Excludes.NOT


TABLES = {"kubernetes": KubernetesOptions}
