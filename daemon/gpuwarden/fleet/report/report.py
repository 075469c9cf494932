"""The report: all data for text, JSON and HTML, computed once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from gpuwarden.fleet.report.figures import HOUR, Figures, Spread, figures, spread
from gpuwarden.fleet.report.history import Node
from gpuwarden.fleet.report.outages import BY, BY_GPUWARDEN, Exclusion, Outage, Story, story
from gpuwarden.fleet.report.reading import DAY, Reading
from gpuwarden.fleet.report.spans import Span, common, total
from gpuwarden.publish.times import rfc3339
from gpuwarden_collectors.dataclass import dataclass

NOT_KNOWN = "(not known)"
LEMON = "lemon"
"""Label that groups nodes by whether they had the finding lemon_node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseRow:
    """A cause of lost time. `nodes`: number of nodes that lost time to it."""

    cause: str
    outages: int
    nodes: int
    repair: Spread
    gpu_hours_lost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardRow:
    """A GPU with findings of failures. `nodes`: its nodes at those times."""

    uuid: str
    nodes: tuple[str, ...]
    outages: int
    causes: tuple[str, ...]
    gpu_hours_lost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExclusionRow:
    """Exclusions by one party. `lasted`: durations of those that began and ended in the period."""

    by: str
    exclusions: int
    still_out: int
    node_hours: float
    lasted: Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class DayRow:
    """A day of the period, or a part of one. `availability`: None if nothing is known."""

    start: float
    availability: float | None
    known: float
    """Fraction of the time between the first and the last sample of each node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All parts, worst first. `groups`: by label (`model`, `lemon`, and requested ones)."""

    start: float
    end: float
    step: int
    fleet: Figures
    causes: tuple[CauseRow, ...]
    groups: Mapping[str, Mapping[str, Figures]]
    boards: tuple[BoardRow, ...]
    exclusions: tuple[ExclusionRow, ...]
    days: tuple[DayRow, ...]
    stories: tuple[Story, ...]
    renamed: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    @property
    def outages(self) -> list[Outage]:
        return sorted(
            (outage for of in self.stories for outage in of.outages), key=lambda outage: -outage.gpu_hours_lost
        )

    @property
    def excluded(self) -> list[Exclusion]:
        return sorted(
            (exclusion for of in self.stories for exclusion in of.exclusions), key=lambda exclusion: -exclusion.seconds
        )


def report(nodes: Iterable[Node], reading: Reading, labels: Sequence[str], notes: Sequence[str]) -> Report:
    """Compute the report. `labels`: labels by which nodes are grouped, in addition to the model."""
    start, end = reading.period
    stories = sorted(
        (story(node, reading.step) for node in nodes),
        key=lambda of_node: (-total(of_node.down) * of_node.node.gpus, of_node.node.name),
    )
    return Report(
        start=start,
        end=end,
        step=reading.step,
        fleet=figures(stories, end),
        causes=_causes(stories),
        groups={label: _grouped(stories, end, label) for label in ("model", *labels, LEMON)},
        boards=_boards(stories),
        exclusions=_exclusions(stories),
        days=tuple(_day(stories, (at, min(end, at + DAY))) for at in range(int(start), int(end), DAY)),
        stories=tuple(stories),
        renamed=tuple(story.node.names for story in stories if len(story.node.names) > 1),
        notes=(*_limits(stories, reading.period), *notes),
    )


def _limits(stories: Iterable[Story], period: Span) -> Iterator[str]:
    """Yield a note if Prometheus has no data at the start or at the end of the period."""
    seen = [story.node.seen for story in stories]
    first, last = min(start for start, _ in seen), max(end for _, end in seen)
    if first > period[0] + HOUR:
        yield f"Prometheus has no data before {rfc3339(first)}: the figures are of the time since then"
    if last < period[1] - HOUR:
        yield f"Prometheus has no data after {rfc3339(last)}"


def _grouped(stories: Sequence[Story], end: float, label: str) -> dict[str, Figures]:
    groups: dict[str, list[Story]] = defaultdict(list)
    for of_node in stories:
        own = "lemons" if of_node.node.lemon else "others"
        groups[own if label == LEMON else of_node.node.labels.get(label, NOT_KNOWN)].append(of_node)
    figures_by_group = {name: figures(of, end) for name, of in groups.items()}
    return dict(sorted(figures_by_group.items(), key=lambda item: (-item[1].gpu_hours_lost, item[0])))


def _causes(stories: Sequence[Story]) -> tuple[CauseRow, ...]:
    lost: dict[str, float] = defaultdict(float)
    nodes: dict[str, int] = defaultdict(int)
    outages: dict[str, list[Outage]] = defaultdict(list)
    for of_node in stories:
        for cause, spans in of_node.lost.items():
            lost[cause] += total(spans) * of_node.node.gpus / HOUR
            nodes[cause] += 1
        for outage in of_node.outages:
            outages[outage.cause].append(outage)
    rows = (
        CauseRow(
            cause=cause,
            outages=len(outages[cause]),
            nodes=nodes[cause],
            repair=spread([outage.seconds for outage in outages[cause] if outage.began and outage.ended]),
            gpu_hours_lost=lost[cause],
        )
        for cause in {*lost, *outages}
    )
    return tuple(sorted(rows, key=lambda row: (-row.gpu_hours_lost, row.cause)))


def _boards(stories: Sequence[Story]) -> tuple[BoardRow, ...]:
    of: dict[str, list[Outage]] = defaultdict(list)
    for outage in chain.from_iterable(of_node.outages for of_node in stories):
        for board in outage.boards:
            of[board].append(outage)
    rows = (
        BoardRow(
            uuid=board,
            nodes=tuple(dict.fromkeys(outage.node for outage in outages)),
            outages=len(outages),
            causes=tuple(dict.fromkeys(outage.cause for outage in outages)),
            gpu_hours_lost=sum(outage.gpu_hours_lost for outage in outages),
        )
        for board, outages in of.items()
    )
    return tuple(sorted(rows, key=lambda row: (-row.outages, -row.gpu_hours_lost, row.uuid)))


def _exclusions(stories: Sequence[Story]) -> tuple[ExclusionRow, ...]:
    exclusions = [exclusion for of in stories for exclusion in of.exclusions]
    return tuple(
        ExclusionRow(
            by=by,
            exclusions=len(of),
            still_out=sum(not exclusion.ended for exclusion in of),
            node_hours=sum(exclusion.seconds for exclusion in of) / HOUR,
            lasted=spread([exclusion.seconds for exclusion in of if exclusion.began and exclusion.ended]),
        )
        for by in (BY_GPUWARDEN, *BY.values())
        if (of := [exclusion for exclusion in exclusions if exclusion.by == by])
    )


def _day(stories: Sequence[Story], day: Span) -> DayRow:
    observed = down = unknown = 0.0
    for of_node in stories:
        observed += total(common(of_node.node.known, (day,)))
        down += total(common(of_node.down, (day,)))
        unknown += total(common(of_node.unknown, (day,)))
    whole = observed + unknown
    return DayRow(
        start=day[0], availability=1 - down / observed if observed else None, known=observed / whole if whole else 0.0
    )
