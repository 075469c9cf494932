"""What `gpuwarden fleet` does."""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from typing import Any

from gpuwarden.cli import fleet_report
from gpuwarden.cli.fleet_text import fitted, fleet_text, print_notes, why_text
from gpuwarden.cli.parser import HEALTH_CODES, UNKNOWN, CommandError
from gpuwarden.cli.prometheus_access import prometheus_access
from gpuwarden.cli.text import clean, table
from gpuwarden.fleet.alike import labels_of
from gpuwarden.fleet.drift import Drift, drift, groups
from gpuwarden.fleet.model import Key, Row
from gpuwarden.fleet.queries import QUERIES, WHY_QUERIES
from gpuwarden.fleet.rows import rows
from gpuwarden.fleet.status import RANK, Status
from gpuwarden.fleet.why import Why, why
from gpuwarden.prometheus.access import Access
from gpuwarden.prometheus.client import PrometheusError, Results, query

TERMINATION_DEADLINE = 1200.0
"""Seconds."""
_FAILING = (Status.FAILURE, Status.UNREACHABLE)
_KEYS = tuple("node cluster job instance status reasons busy excluded_by last_known_out mode domain".split())


def main(options: argparse.Namespace) -> int:
    _combined(options)
    reached = prometheus_access(options, os.environ)
    if options.report is not None:
        return fleet_report.show(reached, options)
    if options.watch is None:
        gc.disable()  # saves a fifth of the time with 10,000 nodes: there are no cycles, and the process is short-lived
        return _show(reached, options)
    while True:
        try:
            _show(reached, options)
        except CommandError as error:
            print(f"gpuwarden fleet: {error}", file=sys.stderr)
        sys.stdout.flush()
        time.sleep(options.watch)


def _combined(options: argparse.Namespace) -> None:
    """Raise CommandError for combinations of options in which one would be ignored."""
    option_names = {name for name, value in vars(options).items() if value not in (None, False)}
    if options.report is None and option_names & {"until", "by", "html"}:
        raise CommandError("--until, --by and --html need --report")
    ignored = (
        option_names & {"all", "status", "why", "watch", "termination_deadline"}
        if options.report is not None or options.drift
        else set()
    )
    if ignored or (options.report is not None and options.drift):
        named = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(ignored or {"drift"}))
        raise CommandError(f"{named}: not allowed with {'--report' if options.report is not None else '--drift'}")


def _show(reached: Access, options: argparse.Namespace) -> int:
    """Query and print the fleet. Raises CommandError if Prometheus cannot be queried or has no such node."""
    try:
        wide = options.why or options.drift
        results = query(reached, QUERIES | WHY_QUERIES if wide else QUERIES, options.timeout)
    except PrometheusError as error:
        raise CommandError(clean(str(error)), UNKNOWN) from error
    deadline = TERMINATION_DEADLINE if options.termination_deadline is None else options.termination_deadline
    all_rows = _chosen(rows(results.samples, deadline), options, reached)
    notes = [f"Prometheus warns: {warning}" for warning in results.warnings]
    if options.drift:
        return show_drift(all_rows, _machines(results), notes, as_json=options.json)
    shown = [row for row in all_rows if _wanted(row, options)]
    if not results.samples["recorded"]:
        notes.append(
            "gpuwarden's recording rules are not loaded in Prometheus: a node whose target is gone disappears after minutes"
        )
    explained = _why(results, all_rows, shown, options) if options.why else None
    if options.json:
        document = {"prometheus": reached.url, "notes": list(notes), "nodes": [_node(row) for row in shown]}
        print(json.dumps(document if explained is None else document | {"why": asdict(explained)}))
    else:
        lines = list(fleet_text(shown, all_rows))
        if explained is not None:
            lines = [*why_text(explained), "", *lines]
        if options.watch is not None and sys.stdout.isatty():
            shown_lines = fitted(lines, notes, *shutil.get_terminal_size())
            lines = ["\x1b[H\x1b[2J" + time.strftime("%H:%M:%S"), *shown_lines]
        print("\n".join(lines))
        print_notes(notes)
    return _code(shown)


def _wanted(row: Row, options: argparse.Namespace) -> bool:
    if options.status is not None:
        return row.status in options.status
    return options.all or options.json or options.node is not None or row.remarkable


def _why(results: Results, all_rows: Sequence[Row], shown: Sequence[Row], options: argparse.Namespace) -> Why:
    """Find what distinguishes the nodes of `--status`, or else the failing and silent ones, from the others."""
    failing = shown if options.status else [row for row in all_rows if row.status in _FAILING]
    return why(all_rows, failing, _machines(results))


def _machines(results: Results) -> dict[Key, dict[str, str]]:
    """Return the labels of nodes; the last known ones for silent nodes."""
    return labels_of(results.samples["machines_before"], results.samples["machines"])


def _chosen(candidates: Sequence[Row], options: argparse.Namespace, reached: Access) -> list[Row]:
    """Select rows by `--cluster` and `--node`. A node of unknown cluster is in each. Raises CommandError if none."""
    if not candidates:
        raise CommandError(
            f"{reached.url} has no series of gpuwarden: does it scrape the daemons (port 9839)?", UNKNOWN
        )
    if options.cluster is not None:
        clusters = sorted({row.cluster for row in candidates if row.cluster})
        if options.cluster not in clusters:
            raise CommandError(f"no node has the cluster {options.cluster!r}; {_clusters(clusters)}", UNKNOWN)
        lost = Status.UNREACHABLE
        candidates = [r for r in candidates if r.cluster == options.cluster or (not r.cluster and r.status is lost)]
    if options.node is not None:
        candidates = [
            row for row in candidates if any(fnmatchcase(name, options.node) for name in (row.node, row.instance))
        ]
        if not candidates:
            raise CommandError(f"{reached.url} has no node {options.node!r}", UNKNOWN)
    return list(candidates)


def _clusters(clusters: Sequence[str]) -> str:
    if clusters:
        return f"there are {clean(', '.join(clusters[:20]))}"
    return "no series there has a label cluster (Prometheus adds external_labels only to data that it sends elsewhere)"


def _node(row: Row) -> dict[str, Any]:
    """The JSON of one row. Avoids `asdict` for the whole row, whose deep copies take longer than Prometheus."""
    document: dict[str, Any] = {name: getattr(row, name) for name in _KEYS}
    return document | {
        "gpus": {"expected": row.expected, "present": row.present},
        "findings": [asdict(finding) for finding in row.findings],
        "age_seconds": _rounded(row.age_seconds),
        "seconds_left": _rounded(row.seconds_left),
        "notice": row.notice and asdict(row.notice) | {"seconds_left": _rounded(row.notice.seconds_left)},
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _code(shown: Sequence[Row]) -> int:
    if not shown:
        return 0
    return HEALTH_CODES.get(max((row.status for row in shown), key=RANK.__getitem__), UNKNOWN)


NAMES_MOST = 8
"""The number of nodes that a line of text names. JSON has all."""


def show_drift(
    rows: Sequence[Row], labels: Mapping[Key, Mapping[str, str]], notes: Sequence[str], *, as_json: bool
) -> int:
    """Print what differs and the notes, and return the exit code."""
    outliers, lone = drift(rows, labels), sum(not groups(row, labels) for row in rows)
    if lone:
        notes = [*notes, f"{lone} of {len(rows)} nodes are not compared: their machine type or GPU model is not known"]
    if as_json:
        print(
            json.dumps({"notes": list(notes), "nodes": len(rows), "drift": [asdict(outlier) for outlier in outliers]})
        )
    else:
        print("\n".join(_text(len(rows) - lone, outliers)))
        print_notes(notes)
    return int(bool(outliers))


def _text(compared: int, outliers: Sequence[Drift]) -> Iterator[str]:
    yield (
        f"{len(outliers)} difference{'s' * (len(outliers) != 1)} among {compared} node{'s' * (compared != 1)} that should be alike"
    )
    if outliers:
        yield ""
        yield from table(
            ("GROUP", "ITEM", "MOST HAVE", "OTHERS"), [[clean(cell) for cell in _row(outlier)] for outlier in outliers]
        )


def _row(outlier: Drift) -> tuple[str, ...]:
    others = (f"{value} on {_names(names)}" for value, names in outlier.others.items())
    return outlier.group, outlier.item, f"{outlier.most} on {outlier.having} of {outlier.nodes}", "; ".join(others)


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES_MOST} more" if len(names) > NAMES_MOST else ""
    return ", ".join(names[:NAMES_MOST]) + more
