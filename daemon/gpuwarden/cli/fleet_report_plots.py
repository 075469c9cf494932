"""The plots of the report as inline SVG without scripts. Escapes every text."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from gpuwarden.cli.fleet_report_text import moment, number, percent
from gpuwarden.cli.html_page import WIDTH, bar, svg, text
from gpuwarden.fleet.report.report import Report
from gpuwarden.fleet.report.spans import Spans

LEFT, ROW = 230, 20
NODES_MOST = 40
CAUSES_MOST = 15
FAILED, PLANNED, UNKNOWN, GOOD = "#c0392b", "#5d7fa8", "#c8c8c8", "#3c8d5a"


def days(made: Report) -> str:
    """Draw a bar for the availability of each day. The labelled scale begins below the worst day."""
    values = [row.availability for row in made.days if row.availability is not None]
    if not values:
        return ""
    floor = max(0.0, min(values) - 0.1 * max(0.01, 1 - min(values)))
    height, wide = 140, (WIDTH - 60) / len(made.days)
    parts = [text(0, 20, percent(1.0)), text(0, height + 10, percent(floor))]
    for place, row in enumerate(made.days):
        x, date = 60 + place * wide, f"{datetime.fromtimestamp(row.start, UTC):%Y-%m-%d}"
        if row.availability is None:
            parts.append(bar(x, 10, wide - 1, height, colour=UNKNOWN, title=f"{date}: nothing is known"))
            continue
        tall = height * (row.availability - floor) / (1 - floor) if floor < 1 else height
        title = f"{date}: available {percent(row.availability)} of the time known, which was {percent(row.known)}"
        parts.append(bar(x, 10 + height - tall, wide - 1, tall, colour=GOOD, title=title))
    parts += [text(60, height + 30, moment(made.start)), text(WIDTH, height + 30, moment(made.end), "end")]
    return svg(height + 40, parts)


def causes(made: Report) -> str:
    """Draw a bar for the GPU-hours lost to each cause."""
    rows = [row for row in made.causes if row.gpu_hours_lost > 0][:CAUSES_MOST]
    if not rows:
        return ""
    scale = (WIDTH - LEFT - 80) / rows[0].gpu_hours_lost
    parts = []
    for place, row in enumerate(rows):
        y, wide = place * ROW, row.gpu_hours_lost * scale
        colour = FAILED if row.outages else PLANNED
        parts += [
            text(LEFT - 8, y + 14, row.cause[:34], "end"),
            bar(
                LEFT, y + 3, wide, ROW - 6, colour=colour, title=f"{row.cause}: {number(row.gpu_hours_lost)} GPU-hours"
            ),
            text(LEFT + wide + 6, y + 14, number(row.gpu_hours_lost)),
        ]
    return svg(len(rows) * ROW, parts)


def nodes(made: Report) -> str:
    """Draw the outages and the unknown times of the nodes that lost most."""
    shown = [story for story in made.stories if story.lost][:NODES_MOST]
    if not shown:
        return ""
    scale = (WIDTH - LEFT) / (made.end - made.start)

    def drawn(spans: Spans, y: int, colour: str, label: str) -> Iterator[str]:
        for start, end in spans:
            x, wide = LEFT + (start - made.start) * scale, max(1.0, (end - start) * scale)
            yield bar(x, y + 3, wide, ROW - 6, colour=colour, title=f"{label}, {moment(start)} to {moment(end)}")

    parts = []
    for place, story in enumerate(shown):
        y, failures = place * ROW, {outage.cause for outage in story.outages}
        parts.append(text(LEFT - 8, y + 14, story.node.name[:34], "end"))
        parts += drawn((story.node.seen,), y, "#eef4ef", f"{story.node.name}: in service")
        parts += drawn(story.unknown, y, UNKNOWN, f"{story.node.name}: not known")
        for cause, spans in story.lost.items():
            parts += drawn(spans, y, FAILED if cause in failures else PLANNED, f"{story.node.name}: {cause}")
    bottom = len(shown) * ROW + 14
    parts += [text(LEFT, bottom, moment(made.start)), text(WIDTH, bottom, moment(made.end), "end")]
    return svg(len(shown) * ROW + 20, parts)
