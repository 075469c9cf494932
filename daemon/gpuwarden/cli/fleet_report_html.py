"""The report as one HTML page with inline styles and plots, without scripts. Escapes every value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from gpuwarden.cli import fleet_report_plots as plots
from gpuwarden.cli import fleet_report_text as report
from gpuwarden.cli import html_page
from gpuwarden.cli.fleet_report_text import GROUP, group_row, lasted, moment, number, summary
from gpuwarden.cli.fleet_text import span
from gpuwarden.fleet.report.report import Report

ROWS_MOST = 1000
_DEFINITIONS = """\
Available: the daemon answers, the node may take work, and it has no failure. Availability is the share of the time known; time in
which the daemon did not answer is unknown, and is not counted.

A failure begins with its first finding and ends when it is gone and the node is no longer excluded for it. A restart of the daemon
is no failure. If a node has a failure when it is first seen, only the hours lost are counted.

MTBF: available hours of nodes for each failure, with an interval of 90 % if failures are independent. Fewer than two failures or
repairs have no mean.

GPU-hours lost: all GPUs of a node, while it is known and not available."""


def page(made: Report) -> str:
    """Return the report as one HTML document that loads nothing: styles and plots are in it."""
    title = f"GPU fleet, {moment(made.start)} to {moment(made.end)} UTC"
    body = "\n".join(_body(made))
    return html_page.page(title, body)


def _body(made: Report) -> Iterator[str]:
    fleet = made.fleet
    yield f"<p>{fleet.nodes:,} nodes, {fleet.gpus:,} GPUs; in steps of {escape(span(made.step))}.</p>"
    yield _table((), list(summary(made)))
    yield from (f"<p><b>Note:</b> {escape(note)}</p>" for note in made.notes)
    yield f"<h2>Availability by day</h2>{plots.days(made)}"
    yield f"<h2>GPU-hours lost by cause</h2>{plots.causes(made)}"
    yield _table(report.CAUSE, report.cause_rows(made))
    key = ((plots.FAILED, "failure"), (plots.PLANNED, "out for another reason"), (plots.UNKNOWN, "not known"))
    yield f"<h2>The nodes that lost most, {plots.NODES_MOST} at most</h2>{plots.nodes(made)}"
    yield (
        '<p class="key">'
        + "".join(f'<span style="background:{colour}">{meaning}</span>' for colour, meaning in key)
        + "</p>"
    )
    for label, groups in made.groups.items():
        if len(groups) > 1:
            yield f"<h2>By {escape(label)}</h2>"
            head = (label.capitalize(), *GROUP)
            yield _table(head, [(name, *group_row(of)) for name, of in groups.items()])
    yield "<h2>Boards</h2>"
    yield _table(report.BOARD, report.board_rows(made.boards))
    yield from _outages(made)
    yield from _exclusions(made)
    if made.renamed:
        yield "<h2>Renamed nodes</h2>"
        yield _table(("Node", "Before"), [(names[0], ", ".join(names[1:])) for names in made.renamed])
    yield "<h2>Definitions</h2>" + "".join(f"<p>{escape(text)}</p>" for text in _DEFINITIONS.split("\n\n"))


def _outages(made: Report) -> Iterator[str]:
    yield "<h2>Outages</h2>"
    yield _table(
        ("Node", "Cause", "Since", "For", "GPU-hours lost"),
        [
            (row.node, row.cause, moment(row.start), lasted(row.seconds, row.ended), number(row.gpu_hours_lost))
            for row in made.outages
        ],
    )


def _exclusions(made: Report) -> Iterator[str]:
    yield "<h2>Exclusions</h2>"
    yield _table(report.EXCLUSION, report.exclusion_rows(made))
    yield _table(
        ("Node", "By", "Where", "Since", "For"),
        [
            (row.node, row.by, ", ".join(row.actuators), moment(row.start), lasted(row.seconds, row.ended))
            for row in made.excluded
        ],
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return html_page.table(head, rows, most=ROWS_MOST, all_of="--json")
