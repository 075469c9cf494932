"""What the nodes that fail have in common: which label explains them, by Fisher's exact test for each label and value.

`gpuwarden_machine_info` has the labels: the daemon's (driver, NVLink domain, chassis, slot, type of machine) and the site's, as the rack.
Each value that at least two nodes have, and not all, is one test; p is multiplied by their number (Bonferroni). A node of which a
label is not known counts for no test of that label. Labels that name the same nodes are one cause.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from gpuwarden.base.fisher import CHANCE, MARKED_LEAST, p_value
from gpuwarden.fleet.model import Key, Row
from gpuwarden_collectors.dataclass import dataclass

CAUSES_MOST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Labels that the same nodes have, and how they are spread."""

    labels: Mapping[str, str]
    """Names and values."""
    failing_with: int
    """Failing nodes that have them."""
    failing: int
    """Failing nodes of which the label is known."""
    having: int
    """Nodes that have them, failing or not."""
    nodes: int
    """Nodes of which the label is known."""
    p: float
    """Chance of so many or more, after the correction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """The best `causes`, none where nothing is explained. `tests`: how many values were compared."""

    failing: int
    nodes: int
    tests: int
    causes: tuple[Cause, ...]


def why(rows: Sequence[Row], failing: Iterable[Row], labels: Mapping[Key, Mapping[str, str]]) -> Why:
    """Find what the `failing` ones of all `rows` have in common."""
    keys = {row.key for row in rows}
    marked = {row.key for row in failing} & keys
    values: dict[str, dict[str, set[Key]]] = defaultdict(lambda: defaultdict(set))
    for key in keys:
        for name, value in labels.get(key, {}).items():
            values[name][value].add(key)
    tables = [
        (name, value, having, of)
        for name, having_of in values.items()
        for of in (frozenset().union(*having_of.values()),)
        for value, having in having_of.items()
        if 2 <= len(having) < len(of)
    ]
    labels_by_nodes: dict[tuple[frozenset[Key], frozenset[Key]], dict[str, str]] = defaultdict(dict)
    for name, value, having, of in sorted(tables, key=lambda table: table[:2]):
        labels_by_nodes[frozenset(having), of][name] = value
    causes = [_cause(names, having, of, marked, len(tables)) for (having, of), names in labels_by_nodes.items()]
    best = sorted(
        (cause for cause in causes if cause.p <= CHANCE),
        key=lambda cause: (cause.p, -cause.failing_with, str(cause.labels)),
    )
    enough = len(marked) >= MARKED_LEAST
    return Why(
        failing=len(marked),
        nodes=len(keys),
        tests=len(tables),
        causes=tuple(best[:CAUSES_MOST]) if enough else (),
    )


def _cause(labels: dict[str, str], having: frozenset[Key], of: frozenset[Key], marked: set[Key], tests: int) -> Cause:
    failing, both = len(of & marked), len(having & marked)
    p = min(1.0, tests * p_value(both, failing, len(having), len(of)))
    return Cause(
        labels=labels,
        failing_with=both,
        failing=failing,
        having=len(having),
        nodes=len(of),
        p=p,
    )
