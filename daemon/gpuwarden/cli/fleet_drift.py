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
    found, lone = drift(rows, labels), sum(not groups(row, labels) for row in rows)
    if lone:
        notes = [
            *notes,
            f"{lone} of {len(rows)} nodes are compared with none: their machine type or GPU model is not known",
        ]
    if as_json:
        print(json.dumps({"notes": list(notes), "nodes": len(rows), "drift": [asdict(outlier) for outlier in found]}))
    else:
        print("\n".join(_text(rows, found)))
        print_notes(notes)
    return int(bool(found))


def _text(rows: Sequence[Row], found: Sequence[Drift]) -> Iterator[str]:
    yield (
        f"{len(found)} difference{'s' * (len(found) != 1)} among {len(rows)} node{'s' * (len(rows) != 1)} that should be alike"
    )
    if found:
        yield ""
        yield from table(
            ("GROUP", "ITEM", "MOST HAVE", "OTHERS"), [[clean(cell) for cell in _row(outlier)] for outlier in found]
        )


def _row(one: Drift) -> tuple[str, ...]:
    others = (f"{value} on {_names(names)}" for value, names in one.others.items())
    return one.group, one.item, f"{one.most} on {one.having} of {one.nodes}", "; ".join(others)


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES_MOST} more" if len(names) > NAMES_MOST else ""
    return ", ".join(names[:NAMES_MOST]) + more
