"""Builds the history of each node over the period from sets of series, under all names that it had."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import TypeVar

from gpuwarden.fleet.alike import labels_of
from gpuwarden.fleet.model import Key, key_of
from gpuwarden.fleet.report.collected import Labels, Set
from gpuwarden.fleet.report.reading import Reading
from gpuwarden.fleet.report.spans import Span, Spans, common, union
from gpuwarden_collectors.dataclass import dataclass

K = TypeVar("K")
Place = tuple[Key, str]
"""A Prometheus target, and a name of its node."""
Cause = tuple[str, str, str]
"""Check, detail and the UUID of the GPU; the last two may be empty."""
LATE = 600.0
"""Seconds for which the last samples may be missing: a step, and the delay of remote storage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine. `names`, `keys`: latest first. `excluded`: by actuator and cause."""

    names: tuple[str, ...]
    keys: tuple[Key, ...]
    known: Spans
    failed: Spans = ()
    unschedulable: Spans = ()
    excluded: Mapping[tuple[str, str], Spans]
    findings: Mapping[Cause, Spans]
    lemon: bool = False
    gpus: int = 0
    labels: Mapping[str, str]

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def place(self) -> Place:
        return self.keys[0], self.names[0]

    @property
    def seen(self) -> Span:
        return self.known[0][0], self.known[-1][1]

    def gone(self, end: float) -> bool:
        """Return True if the node was last seen before the end of the period. The last samples may arrive late."""
        return self.seen[1] < end - LATE


def nodes_of(reading: Reading) -> list[Node]:
    """Return a node for each Prometheus target that had a daemon. Successive names of a target are separate nodes,
    since an address may be reassigned to another machine; `joined` joins those with the same boards.
    """
    names: dict[Key, dict[str, Spans]] = defaultdict(dict)
    for labels, spans in reading.sets["known"].items():
        names[_key(labels)][dict(labels)["node"]] = spans
    by_key = {name: _by_key(spans_by_labels) for name, spans_by_labels in reading.sets.items()}
    gpus: dict[Key, int] = defaultdict(int)
    for sample in reading.slow.get("gpus", ()):
        gpus[key_of(sample)] = max(gpus[key_of(sample)], int(sample.value))
    machines = sorted(reading.slow.get("machines", ()), key=lambda sample: sample.at)
    labels_by_key = labels_of(machines)
    return [
        Node(
            names=tuple(name or key[2] for name in named),
            keys=(key,),
            known=known_spans,
            failed=common(_spans(by_key["failed"][key]), turn),
            unschedulable=common(_spans(by_key["unschedulable"][key]), turn),
            excluded={(of["actuator"], of["cause"]): common(spans, turn) for of, spans in by_key["excluded"][key]},
            findings={cause: common(union(*of), turn) for cause, of in _causes(by_key["findings"][key]).items()},
            lemon=bool(common(_spans(by_key["lemons"][key]), turn)),
            gpus=gpus[key],
            labels=labels_by_key.get(key, {}),
        )
        for key, of_names in names.items()
        for named, known_spans in _turns(of_names, reading.step)
        for turn in (((known_spans[0][0], known_spans[-1][1]),),)
    ]


def _turns(of_names: Mapping[str, Spans], step: float) -> Iterator[tuple[tuple[str, ...], Spans]]:
    """Yield names, latest first, and their spans: each name separately, unless names alternate or overlap by more than
    a step, in which one name may follow another.
    """
    order = sorted(of_names.items(), key=lambda item: item[1][0])
    follows = [later[1][0][0] for later in order[1:]]
    if any(spans[-1][1] > start + step for (_, spans), start in zip(order, follows, strict=False)):
        yield tuple(sorted(of_names, key=lambda name: -of_names[name][-1][1])), union(*of_names.values())
        return
    for (name, spans), end in zip(order, (*follows, inf), strict=True):
        if turn := common(spans, ((0.0, end),)):
            yield (name,), turn


def _by_key(spans_by_labels: Set) -> dict[Key, list[tuple[dict[str, str], Spans]]]:
    of: dict[Key, list[tuple[dict[str, str], Spans]]] = defaultdict(list)
    for labels, spans in spans_by_labels.items():
        of[_key(labels)].append((dict(labels), spans))
    return of


def _key(labels: Labels) -> Key:
    of = dict(labels)
    return of["cluster"], of["job"], of["instance"]


def _causes(findings: Iterable[tuple[Mapping[str, str], Spans]]) -> dict[Cause, list[Spans]]:
    """Group findings by cause. The detail counts only for Xids; for other checks it is a link or a mount."""
    causes: dict[Cause, list[Spans]] = defaultdict(list)
    for of, spans in findings:
        causes[of["check"], of["detail"] if of["check"] == "xid" else "", of["uuid"]].append(spans)
    return causes


def _spans(labelled: Iterable[tuple[object, Spans]]) -> Spans:
    return union(*(spans for _, spans in labelled))


def partial(nodes: Iterable[Node], reading: Reading) -> list[Node]:
    """Return nodes that appeared or disappeared within the period: one may be another under a new name."""
    start, end = reading.period
    return [node for node in nodes if node.seen[0] > start or node.gone(end)]


def joined(nodes: Sequence[Node], boards: Mapping[Place, frozenset[str]]) -> list[Node]:
    """Join successive nodes that are one machine: the same name at another address, or the same boards.

    `boards`: GPU UUIDs. At least half of the boards must be the same, since boards are replaced. Nodes that were known
    at the same time are never joined.
    """
    machines: list[Node] = []
    alike: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for node in sorted(nodes, key=lambda node: node.seen):
        of = boards.get(node.place, frozenset())
        marks = [("name", node.keys[0][0], node.keys[0][1], node.name), *(("board", uuid) for uuid in of)]
        candidates = {place: None for mark in marks for place in reversed(alike[mark])}
        place = next((place for place in candidates if _same(machines[place], node, boards)), None)
        if place is None:
            place = len(machines)
            machines.append(node)
        else:
            machines[place] = _join(machines[place], node)
        for mark in marks:
            alike[mark].append(place)
    return machines


def _same(earlier: Node, later: Node, boards: Mapping[Place, frozenset[str]]) -> bool:
    if common(earlier.known, later.known):
        return False
    first, second = (boards.get(node.place, frozenset()) for node in (earlier, later))
    if first and second:
        return 2 * len(first & second) >= max(len(first), len(second))
    return earlier.name == later.name and earlier.keys[0][:2] == later.keys[0][:2]


def _join(earlier: Node, later: Node) -> Node:
    return replace(
        later,
        names=tuple(dict.fromkeys((*later.names, *earlier.names))),
        keys=tuple(dict.fromkeys((*later.keys, *earlier.keys))),
        known=union(earlier.known, later.known),
        failed=union(earlier.failed, later.failed),
        unschedulable=union(earlier.unschedulable, later.unschedulable),
        excluded=_merged(earlier.excluded, later.excluded),
        findings=_merged(earlier.findings, later.findings),
        lemon=earlier.lemon or later.lemon,
        gpus=max(earlier.gpus, later.gpus),
        labels={**earlier.labels, **later.labels},
    )


def _merged(earlier: Mapping[K, Spans], later: Mapping[K, Spans]) -> dict[K, Spans]:
    return {key: union(earlier.get(key, ()), later.get(key, ())) for key in {**earlier, **later}}
