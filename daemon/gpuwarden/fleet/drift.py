"""Versions that differ among nodes that should be alike: same machine type and GPU model, or same NVLink domain."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from gpuwarden.fleet.model import Key, Row
from gpuwarden_collectors.dataclass import dataclass

ITEMS = ("driver", "vbios", "inforom", "adapter_firmware", "kernel")
"""Labels of `gpuwarden_machine_info` that are versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """An item whose value differs among the nodes of a group. `domain`: the group is an NVLink domain.

    `nodes`: number of nodes that report the item. `most`: the commonest value, which `having` nodes have.
    `others`: the other nodes by value, rarest value last.
    """

    group: str
    domain: bool
    item: str
    nodes: int
    most: str
    having: int
    others: Mapping[str, tuple[str, ...]]


def drift(rows: Iterable[Row], labels: Mapping[Key, Mapping[str, str]]) -> list[Drift]:
    """Return all differences, NVLink domains first. A node that does not report an item is left out for that item."""
    alike: dict[tuple[bool, str], list[tuple[str, Mapping[str, str]]]] = defaultdict(list)
    for row in rows:
        for group in groups(row, labels):
            alike[group].append((row.node, labels[row.key]))
    differences = (
        difference
        for (domain, group), nodes in alike.items()
        for item in ITEMS
        if (difference := _compared(group, domain, item, nodes)) is not None
    )
    return sorted(
        differences, key=lambda difference: (not difference.domain, difference.group, ITEMS.index(difference.item))
    )


def groups(row: Row, labels: Mapping[Key, Mapping[str, str]]) -> list[tuple[bool, str]]:
    """Return the groups of the node, as in `Drift`: whether the group is an NVLink domain, and its name."""
    of = labels.get(row.key, {})
    memberships = []
    if of.get("machine_type") and of.get("model"):
        memberships.append((False, ", ".join(filter(None, (row.cluster, of["machine_type"], of["model"])))))
    if of.get("cluster_uuid"):
        memberships.append((True, f"NVLink domain {of['cluster_uuid']} clique {of.get('clique', '')}".rstrip()))
    return memberships


def _compared(group: str, domain: bool, item: str, nodes: Iterable[tuple[str, Mapping[str, str]]]) -> Drift | None:
    by_value: dict[str, list[str]] = defaultdict(list)
    for name, of in nodes:
        if of.get(item):
            by_value[of[item]].append(name)
    if len(by_value) < 2:
        return None
    ordered = sorted(by_value, key=lambda value: (-len(by_value[value]), value))
    return Drift(
        group=group,
        domain=domain,
        item=item,
        nodes=sum(map(len, by_value.values())),
        most=ordered[0],
        having=len(by_value[ordered[0]]),
        others={value: tuple(sorted(by_value[value])) for value in ordered[1:]},
    )
