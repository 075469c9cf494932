"""`gpuwarden fleet --drift`: versions that differ among nodes that should be alike."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from gpuwarden.cli.fleet_text import print_notes
from gpuwarden.cli.text import clean, table
from gpuwarden.fleet.drift import Drift, drift, groups
from gpuwarden.fleet.model import Key, Row

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
        print("\n".join(_text(rows, outliers)))
        print_notes(notes)
    return int(bool(outliers))


def _text(rows: Sequence[Row], outliers: Sequence[Drift]) -> Iterator[str]:
    yield (
        f"{len(outliers)} difference{'s' * (len(outliers) != 1)} among {len(rows)} node{'s' * (len(rows) != 1)} that should be alike"
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
