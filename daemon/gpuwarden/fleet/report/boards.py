"""The boards of nodes that appeared or disappeared within the period, to recognise a renamed node."""

from __future__ import annotations

import json
from collections.abc import Sequence

from gpuwarden.fleet.model import key_of
from gpuwarden.fleet.report.history import Node, Place
from gpuwarden.prometheus.access import Access
from gpuwarden.prometheus.client import PrometheusError, Sample, query

NODES_MOST = 2000
"""Most nodes for which boards are read. An autoscaled fleet has more, and no node of it is renamed."""
BATCH = 100
"""Queries that share one deadline."""


def boards_of(access: Access, nodes: Sequence[Node], timeout: float) -> tuple[dict[Place, frozenset[str]], list[str]]:
    """Return the last known GPU UUIDs by node, and notes on what is unknown. `timeout`: for each batch of queries."""
    if len(nodes) < 2:
        return {}, []
    if len(nodes) > NODES_MOST:
        return {}, [f"{len(nodes)} nodes came or went in this period: a node that was renamed is shown as two"]
    queries = [(str(number), _query(node)) for number, node in enumerate(nodes)]
    samples: dict[str, list[Sample]] = {}
    try:
        for start in range(0, len(queries), BATCH):
            samples |= query(access, dict(queries[start : start + BATCH]), timeout).samples
    except PrometheusError as error:
        return {}, [
            f"the GPUs of {len(nodes)} nodes that came or went cannot be read, and a node that was renamed is shown as two: {error}"
        ]
    boards = {
        node.place: frozenset(
            sample.labels.get("uuid", "") for sample in samples[str(number)] if key_of(sample) == node.keys[0]
        )
        for number, node in enumerate(nodes)
    }
    without = [node.name for node in nodes if not boards[node.place]]
    if not without:
        return boards, []
    return boards, [
        f"no GPU of {', '.join(without[:5])}{' and others' if len(without) > 5 else ''} is known: if such a node was renamed, it is shown as two"
    ]


def _query(node: Node) -> str:
    cluster, job, instance = node.keys[0]
    of = ",".join(
        f"{name}={json.dumps(value)}" for name, value in (("cluster", cluster), ("job", job), ("instance", instance))
    )
    first, end = node.seen  # not before that: another node may have had the address
    within = f"{max(1, min(3600, int(end - first)))}s"
    last = f'last_over_time(gpuwarden_gpu_health{{uuid!="",{of}}}[{within}] @ {end:.3f})'
    return f"group by (cluster, job, instance, uuid) ({last})"
