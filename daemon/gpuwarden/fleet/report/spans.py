"""Arithmetic of time spans, on which every figure of the report is based."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

Span = tuple[float, float]
"""Start and end, Unix time."""
Spans = tuple[Span, ...]
"""Disjoint, in order, none empty."""


def union(*of: Iterable[Span]) -> Spans:
    """Return the time that is in any of the spans."""
    merged: list[Span] = []
    for start, end in sorted(span for spans in of for span in spans):
        if end <= start:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return tuple(merged)


def common(first: Spans, second: Spans) -> Spans:
    """Return the time that is in both sets of spans."""
    return tuple(_common(first, second))


def _common(first: Spans, second: Spans) -> Iterator[Span]:
    at_first, at_second = 0, 0
    while at_first < len(first) and at_second < len(second):
        start = max(first[at_first][0], second[at_second][0])
        end = min(first[at_first][1], second[at_second][1])
        if start < end:
            yield start, end
        if first[at_first][1] < second[at_second][1]:
            at_first += 1
        else:
            at_second += 1


def without(spans: Spans, removed: Spans) -> Spans:
    """Return the time that is in `spans` and not in `removed`."""
    if not spans:
        return ()
    ends = [spans[0][0], *(moment for span in removed for moment in span), spans[-1][1]]
    between = [(start, end) for start, end in zip(ends[::2], ends[1::2], strict=True) if start < end]
    return common(spans, tuple(between))


def total(spans: Spans) -> float:
    return sum(end - start for start, end in spans)


def bridged(spans: Spans, known_spans: Spans) -> Spans:
    """Extend spans over gaps in the known time: a state at the start of a gap lasts until its end."""
    return union((start, _resumed(end, known_spans)) for start, end in spans)


def _resumed(end: float, known_spans: Spans) -> float:
    return next((max(end, start) for start, until in known_spans if until > end), end)


def toggled(changes: Iterable[tuple[float, bool]], end: float) -> Spans:
    """Return the spans in which a condition held. `changes`: times of its start (True) and end (False), in order."""
    spans: list[Span] = []
    since: float | None = None
    for at, holds in changes:
        if holds and since is None:
            since = at
        elif not holds and since is not None:
            spans.append((since, at))
            since = None
    return union(spans if since is None else [*spans, (since, end)])
