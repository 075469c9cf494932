"""The report as text for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

from gpuwarden.cli.fleet_text import span
from gpuwarden.cli.text import clean, table
from gpuwarden.fleet.report.figures import Figures, Spread
from gpuwarden.fleet.report.report import BoardRow, Report

ROWS_MOST = 10
"""The number of rows of a table in text. JSON has all."""


def report_text(made: Report) -> Iterator[str]:
    fleet = made.fleet
    yield f"{moment(made.start)} to {moment(made.end)} UTC ({span(made.end - made.start)}), in steps of {span(made.step)}"
    gone = f", {fleet.gone} of them last seen before the end" if fleet.gone else ""
    yield f"{_nodes(fleet.nodes)}{gone}; {fleet.gpus:,} GPUs"
    yield ""
    yield from (f"{name:<16}{text}" for name, text in summary(made))
    yield from _section("lost by cause", CAUSE, cause_rows(made))
    for label, groups in made.groups.items():
        if len(groups) > 1:
            yield from _section(f"by {label}", (label, *GROUP), [(name, *group_row(of)) for name, of in groups.items()])
    yield from _section("boards with several outages", BOARD, board_rows(row for row in made.boards if row.outages > 1))
    yield from _section("excluded by", EXCLUSION, exclusion_rows(made))
    yield from _section(
        "longest exclusions",
        ("Node", "By", "Since", "For"),
        [
            (
                exclusion.node,
                exclusion.by + (f" ({', '.join(exclusion.actuators)})" if exclusion.actuators else ""),
                moment(exclusion.start),
                lasted(exclusion.seconds, exclusion.ended),
            )
            for exclusion in made.excluded
        ],
    )
    yield from _section("renamed", ("Node", "Before"), [(names[0], ", ".join(names[1:])) for names in made.renamed])
    yield from (f"\nnote: {clean(note)}" for note in made.notes)


def summary(made: Report) -> Iterator[tuple[str, str]]:
    """Yield the figures of the whole fleet: the name of each, and its text."""
    fleet = made.fleet
    of_seen = fleet.unknown_hours / (fleet.known_hours + fleet.unknown_hours) if fleet.known_hours else 1.0
    least = (
        ""
        if fleet.availability_least is None or not of_seen
        else f"; {percent(fleet.availability_least)} if it was down while unknown"
    )
    yield "availability", f"{percent(fleet.availability)} of the time known{least}"
    yield (
        "unknown",
        f"{percent(of_seen)} of the time: {number(fleet.unknown_hours)} node-hours without an answer of the daemon",
    )
    earlier = f" (and {fleet.earlier:,} when a node was first seen)" if fleet.earlier else ""
    yield "failures", f"{fleet.failures:,}{earlier}{_mtbf(fleet)}"
    out = f"; {fleet.still_out} still out" if fleet.still_out else ""
    yield "time to repair", f"{repair(fleet.repair)}{out}"
    lost = f" ({percent(fleet.gpu_hours_lost / fleet.gpu_hours)})" if fleet.gpu_hours else ""
    yield "GPU-hours lost", f"{number(fleet.gpu_hours_lost)} of {number(fleet.gpu_hours)}{lost}"


def _mtbf(of: Figures) -> str:
    if of.mtbf_hours is None:
        return f" in {number(of.available_hours)} available node-hours, too few for an MTBF"
    return (
        f"; MTBF of a node {number(of.mtbf_hours)} h (90 % interval {number(of.mtbf_low)} to {number(of.mtbf_high)} h)"
    )


CAUSE = ("Cause", "Outages", "Nodes", "Time to repair", "GPU-hours lost")
BOARD = ("Board", "Node", "Outages", "Causes", "GPU-hours lost")
EXCLUSION = ("By", "Times", "Still out", "Node-hours", "Lasted")
GROUP = ("Nodes", "Availability", "Unknown", "Failures", "MTBF", "Time to repair", "GPU-hours lost")
"""The columns of `cause_rows`, `board_rows`, `exclusion_rows` and `group_row`."""


def cause_rows(made: Report) -> list[tuple[str, ...]]:
    return [
        (row.cause, str(row.outages or "-"), str(row.nodes), repair(row.repair), number(row.gpu_hours_lost))
        for row in made.causes
    ]


def board_rows(boards: Iterable[BoardRow]) -> list[tuple[str, ...]]:
    return [
        (row.uuid, ", ".join(row.nodes), str(row.outages), ", ".join(row.causes), number(row.gpu_hours_lost))
        for row in boards
    ]


def exclusion_rows(made: Report) -> list[tuple[str, ...]]:
    return [
        (row.by, str(row.exclusions), str(row.still_out), number(row.node_hours), repair(row.lasted))
        for row in made.exclusions
    ]


def group_row(of: Figures) -> tuple[str, ...]:
    whole = of.known_hours + of.unknown_hours
    return (
        str(of.nodes),
        percent(of.availability),
        percent(of.unknown_hours / whole if whole else None),
        str(of.failures),
        "-" if of.mtbf_hours is None else f"{number(of.mtbf_hours)} h",
        repair(of.repair),
        number(of.gpu_hours_lost),
    )


def repair(of: Spread) -> str:
    """Format a spread: its median with the extremes, or its only value."""
    if of.shortest is None or of.longest is None:
        return "-"
    if of.median is None:
        return f"{span(of.shortest)} (once)"
    return f"{span(of.median)} (median of {of.count:,}; {span(of.shortest)} to {span(of.longest)})"


def lasted(seconds: float, ended: bool) -> str:
    return span(seconds) + ("" if ended else ", still out")


def percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{100 * fraction:.2f} %"


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def moment(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M}"


def _nodes(count: int) -> str:
    return f"{count:,} node{'s' * (count != 1)}"


def _section(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if not rows:
        return
    yield f"\n{title}"
    heads = [name.upper() for name in head]
    yield from (f"  {line}" for line in table(heads, [[clean(cell) for cell in row] for row in rows[:ROWS_MOST]]))
    if len(rows) > ROWS_MOST:
        yield f"  … {len(rows) - ROWS_MOST} more: --json has all"
