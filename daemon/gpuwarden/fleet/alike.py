"""The labels of nodes, and the nodes that expect fewer GPUs than others of the same machine type and GPU model."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from gpuwarden.fleet.model import Key, Row, key_of
from gpuwarden.prometheus.client import Sample
from gpuwarden.publish.metrics.machine import OF_THE_NODE

LEAST = 4
"""Minimum number of nodes of one type for which GPU counts are compared."""
AGREE = 0.75
"""Fraction of the group that must have the same number of GPUs."""


def labels_of(*samples: Iterable[Sample]) -> dict[Key, dict[str, str]]:
    """Return each node's labels that other nodes may share. Later `samples` override earlier ones, unless empty."""
    by_node: dict[Key, dict[str, str]] = defaultdict(dict)
    for of_query in samples:
        for sample in of_query:
            shared = ((name, value) for name, value in sample.labels.items() if value and name not in OF_THE_NODE)
            by_node[key_of(sample)].update(shared)
    return dict(by_node)


def incomplete(rows: Iterable[Row], labels: Mapping[Key, Mapping[str, str]]) -> list[Row]:
    """Add a reason to each node that expects fewer GPUs than most nodes of the same machine type and GPU model."""
    rows = list(rows)
    alike: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        of = labels.get(row.key, {})
        if row.expected and of.get("machine_type") and of.get("model"):
            alike[of["machine_type"], of["model"]].append(row)
    less: dict[Key, str] = {}
    for group in alike.values():
        number, count = Counter(row.expected for row in group).most_common(1)[0]
        if len(group) >= LEAST and count >= AGREE * len(group):
            text = f"of {len(group)} nodes of this type {count} have {number} GPUs"
            less |= {row.key: text for row in group if (row.expected or 0) < (number or 0)}
    return [replace(row, reasons=(*row.reasons, less[row.key])) if row.key in less else row for row in rows]
