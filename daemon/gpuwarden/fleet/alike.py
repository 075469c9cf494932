"""The labels of nodes, and nodes that have fewer GPUs than others of their type of machine."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from gpuwarden.fleet.model import Key, Row, key_of
from gpuwarden.prometheus.client import Sample
from gpuwarden.publish.metrics.machine import OF_THE_NODE

LEAST = 4
"""Nodes of one type from which on one can differ from the others."""
AGREE = 0.75
"""Fraction of the group that has the same number of GPUs."""


def labels_of(*samples: Iterable[Sample]) -> dict[Key, dict[str, str]]:
    """Labels that each node shares with others, by node. A value of a later one of `samples` counts more, unless it is empty."""
    by_node: dict[Key, dict[str, str]] = defaultdict(dict)
    for of_query in samples:
        for sample in of_query:
            shared = ((name, value) for name, value in sample.labels.items() if value and name not in OF_THE_NODE)
            by_node[key_of(sample)].update(shared)
    return dict(by_node)


def incomplete(rows: Iterable[Row], labels: Mapping[Key, Mapping[str, str]]) -> list[Row]:
    """Add a reason where a node expects fewer GPUs than most of its like: same type of machine, same model of GPU."""
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
