"""Derives outages with their causes, exclusions, and the lost time from the history of a node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpuwarden.fleet.report.history import Node
from gpuwarden.fleet.report.spans import Span, Spans, bridged, common, total, union, without
from gpuwarden.health.inhibition import causes
from gpuwarden_collectors.dataclass import dataclass

FAILURE = "failure"
BY: Mapping[str, str] = {
    "operator": "an operator (gpuwarden exclude)",
    "termination": "gpuwarden, for a termination",
    "foreign": "another party",
    "maintenance": "a maintenance reservation",
}
"""Party that excludes a node without a failure, by the cause in `gpuwarden_excluded`."""
OTHER = "not schedulable for another reason"
"""No recent GPU reading, unknown health, or an imminent termination."""
BY_GPUWARDEN = "gpuwarden, for a failure"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A condition of a node for a time. `began`, `ended`: False if outside the time for which the node was seen."""

    node: str
    start: float
    end: float
    began: bool
    ended: bool

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage(Event):
    """A failure, from its first finding to the return of the node. The hours of all its GPUs count as lost."""

    cause: str
    boards: tuple[str, ...] = ()
    gpu_hours_lost: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion(Event):
    """An exclusion of a node. `actuators`: the schedulers, empty without one."""

    by: str
    actuators: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """A node with its outages and exclusions. `lost`: disjoint spans by cause, in sum the known unavailable time."""

    node: Node
    outages: tuple[Outage, ...]
    exclusions: tuple[Exclusion, ...]
    lost: Mapping[str, Spans]

    @property
    def down(self) -> Spans:
        return union(*self.lost.values())

    @property
    def unknown(self) -> Spans:
        return without((self.node.seen,), self.node.known)


def story(node: Node, step: float) -> Story:
    remaining = common(union(node.unschedulable, node.failed), node.known)
    failing = bridged(union(node.failed, *(of for (_, why), of in node.excluded.items() if why == FAILURE)), node.known)
    outages: list[Outage] = []
    lost: dict[str, Spans] = {}
    for span in failing:
        cause, boards = _cause(node, span, step)
        part = common(remaining, (span,))
        remaining = without(remaining, (span,))
        lost[cause] = union(lost.get(cause, ()), part)
        hours = total(part) * node.gpus / 3600
        outages.append(Outage(**_event(node, span), cause=cause, boards=boards, gpu_hours_lost=hours))
    for why, by in BY.items():
        spans = union(*(of for (_, cause), of in node.excluded.items() if cause == why))
        lost[by] = common(remaining, spans)
        remaining = without(remaining, spans)
    lost[OTHER] = remaining
    return Story(
        node=node,
        outages=tuple(outages),
        exclusions=tuple(_exclusions(node)),
        lost={cause: spans for cause, spans in lost.items() if spans},
    )


def _event(node: Node, span: Span) -> dict[str, Any]:
    return {
        "node": node.name,
        "start": span[0],
        "end": span[1],
        "began": span[0] > node.seen[0],
        "ended": span[1] < node.seen[1],
    }


def _cause(node: Node, outage: Span, step: float) -> tuple[str, tuple[str, ...]]:
    """Return the first check, or of several the one that causes the others, and its boards."""
    within = {of: held[0][0] for of, spans in node.findings.items() if (held := common(spans, (outage,)))}
    if not within:
        return "no finding", ()
    first = min(within.values())
    early = {of for of, start in within.items() if start <= first + step}
    codes = {check for check, _, _ in early}
    roots = sorted(of for of in early if not causes(of[0]) & (codes - {of[0]})) or sorted(early)
    check, detail, _ = roots[0]
    boards = {board for name, text, board in roots if (name, text) == (check, detail) and board}
    return f"{check} {detail}".rstrip(), tuple(sorted(boards))


def _exclusions(node: Node) -> Iterator[Exclusion]:
    for why, by in {FAILURE: BY_GPUWARDEN, **BY}.items():
        of = {actuator: spans for (actuator, cause), spans in node.excluded.items() if cause == why}
        for span in bridged(union(*of.values()), node.known):
            where = tuple(sorted(name for name, spans in of.items() if name and common(spans, (span,))))
            yield Exclusion(**_event(node, span), by=by, actuators=where)
