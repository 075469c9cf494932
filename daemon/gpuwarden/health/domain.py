"""The NVLink domain of a node: machines that share memory over NVLink, such as the 18 nodes of an NVL72."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpuwarden_collectors.facts import NvmlFacts

_UUID_SHOWN = 8
_ODD = re.compile(r"[^A-Za-z0-9-]")


def domain_name(cluster_uuid: str, clique: str) -> str:
    """Return a short name: first digits of the cluster UUID, and the clique, which may be 0. "" without a cluster."""
    uuid, clique = _ODD.sub("", cluster_uuid)[:_UUID_SHOWN], _ODD.sub("", clique)
    return f"{uuid}.{clique}" if uuid and clique else ""


def domain_of_labels(labels: Mapping[str, str]) -> str:
    """Return the domain from the labels of `gpuwarden_machine_info`. Of several take the first, as the node does."""
    uuid, clique = (labels.get(name, "").partition("+")[0] for name in ("cluster_uuid", "clique"))
    return domain_name(uuid, clique)


def domain_of(facts: NvmlFacts | None) -> str:
    """Return the domain of this node; "" while no GPU reports one."""
    names = (
        domain_name(gpu.placement.cluster_uuid, str(gpu.readings.fabric_clique))
        for gpu in (() if facts is None else facts.gpus)
        if gpu.readings.fabric_in_cluster and gpu.readings.fabric_clique is not None
    )
    return min(filter(None, names), default="")
