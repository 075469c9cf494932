"""`gpuwarden fleet --report`: figures of a period, as text, JSON or one HTML file."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from typing import Any

from gpuwarden.cli.fleet_report_html import page
from gpuwarden.cli.fleet_report_options import BY
from gpuwarden.cli.fleet_report_text import moment, report_text
from gpuwarden.cli.parser import UNKNOWN, CommandError
from gpuwarden.cli.text import clean
from gpuwarden.fleet.report.boards import boards_of
from gpuwarden.fleet.report.history import Node, joined, nodes_of, partial
from gpuwarden.fleet.report.reading import read
from gpuwarden.fleet.report.report import Report, report
from gpuwarden.prometheus.access import Access
from gpuwarden.prometheus.client import PrometheusError, TooLargeError
from gpuwarden.publish.times import rfc3339


def show(reached: Access, options: argparse.Namespace) -> int:
    """Print the report, and write its file. Raises CommandError."""
    try:
        made = _report(reached, options)
    except TooLargeError as error:
        to_do = "raise its --query.max-samples or --query.timeout, or give a longer --timeout"
        message = f"{error}. This is already the smallest query for so many nodes: {to_do}"
        raise CommandError(clean(message), UNKNOWN) from error
    except PrometheusError as error:
        raise CommandError(clean(str(error)), UNKNOWN) from error
    if options.html is not None:
        try:
            options.html.write_text(page(made), encoding="utf-8", errors="replace")
        except OSError as error:
            raise CommandError(f"cannot write the report to {options.html}: {error.strerror}") from error
    print(json.dumps(document(made)) if options.json else "\n".join(report_text(made)))
    return 0


def _report(reached: Access, options: argparse.Namespace) -> Report:
    reading = read(reached, options.until, options.report, options.timeout, _progress)
    _progress(None)
    nodes = nodes_of(reading)
    boards, notes = boards_of(reached, partial(nodes, reading), options.timeout)
    nodes = _chosen(joined(nodes, boards), options, reached)
    by = BY if options.by is None else options.by
    return report(nodes, reading, by, [*(f"Prometheus warns: {text}" for text in reading.warnings), *notes])


def _chosen(nodes: Sequence[Node], options: argparse.Namespace, reached: Access) -> list[Node]:
    """Return the nodes of `--cluster` and `--node`, by any of their names. Raises CommandError if there is none."""
    chosen = [
        node
        for node in nodes
        if (options.cluster is None or any(key[0] == options.cluster for key in node.keys))
        and (
            options.node is None
            or any(fnmatchcase(name, options.node) for name in (*node.names, *(key[2] for key in node.keys)))
        )
    ]
    if not chosen:
        raise CommandError(f"{reached.url} has no such node in this period", UNKNOWN)
    return chosen


def _progress(at: float | None) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{'' if at is None else f'reading {moment(at)}'}", end="", file=sys.stderr, flush=True)


def document(made: Report) -> dict[str, Any]:
    """Make the JSON of a report. Times are in UTC, durations in seconds, hours as numbers."""
    return {
        "start": rfc3339(made.start),
        "end": rfc3339(made.end),
        "step_seconds": made.step,
        "notes": list(made.notes),
        "fleet": asdict(made.fleet),
        "causes": [asdict(row) for row in made.causes],
        "groups": {label: {name: asdict(of) for name, of in groups.items()} for label, groups in made.groups.items()},
        "boards": [asdict(row) for row in made.boards],
        "exclusions_by": [asdict(row) for row in made.exclusions],
        "days": [asdict(row) | {"start": rfc3339(row.start)} for row in made.days],
        "outages": [_event(asdict(outage)) for outage in made.outages],
        "exclusions": [_event(asdict(exclusion)) for exclusion in made.excluded],
        "renamed": [list(names) for names in made.renamed],
        "unknown": [
            {"node": story.node.name, "start": rfc3339(start), "end": rfc3339(end)}
            for story in made.stories
            for start, end in story.unknown
        ],
    }


def _event(event: Mapping[str, Any]) -> dict[str, Any]:
    return {**event, "start": rfc3339(event["start"]), "end": rfc3339(event["end"])}
