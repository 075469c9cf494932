"""Finds the labels that failing nodes have in common, by Fisher's exact test for each label and value.

The labels are those of `gpuwarden_machine_info`: the daemon's (driver, NVLink domain, chassis, slot, machine type) and
the site's, such as the rack. Each value that at least two nodes have, but not all, is one test; p is multiplied by the
number of tests (Bonferroni). Tests of a label exclude nodes without it. Labels of the same nodes are one cause.
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
    """Labels that select the same nodes, and how many of these nodes fail."""

    labels: Mapping[str, str]
    """Names and values."""
    failing_with: int
    """Failing nodes with these labels."""
    failing: int
    """Failing nodes that report the label."""
    having: int
    """Nodes with these labels, failing or not."""
    nodes: int
    """Nodes that report the label."""
    p: float
    """Probability that this many or more fail by chance, after the Bonferroni correction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """The best `causes`, empty if no label explains the failures. `tests`: number of label values that were tested."""

    failing: int
    nodes: int
    tests: int
    causes: tuple[Cause, ...]


def why(rows: Sequence[Row], failing: Iterable[Row], labels: Mapping[Key, Mapping[str, str]]) -> Why:
    """Return the labels that the `failing` nodes among all `rows` have in common."""
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
        failing=len(marked), nodes=len(keys), tests=len(tables), causes=tuple(best[:CAUSES_MOST]) if enough else ()
    )


def _cause(labels: dict[str, str], having: frozenset[Key], of: frozenset[Key], marked: set[Key], tests: int) -> Cause:
    failing, both = len(of & marked), len(having & marked)
    p = min(1.0, tests * p_value(both, failing, len(having), len(of)))
    return Cause(labels=labels, failing_with=both, failing=failing, having=len(having), nodes=len(of), p=p)
