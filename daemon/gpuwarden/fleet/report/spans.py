"""Arithmetic of time spans: what every figure of the report is made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

Span = tuple[float, float]
"""Start and end, Unix time."""
Spans = tuple[Span, ...]
"""Disjoint, in order, none empty."""


def union(*of: Iterable[Span]) -> Spans:
    """Return the time that is in any of them."""
    found: list[Span] = []
    for start, end in sorted(span for spans in of for span in spans):
        if end <= start:
            continue
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return tuple(found)


def common(first: Spans, second: Spans) -> Spans:
    """Return the time that is in both."""
    return tuple(_common(first, second))


def _common(first: Spans, second: Spans) -> Iterator[Span]:
    one, other = 0, 0
    while one < len(first) and other < len(second):
        start = max(first[one][0], second[other][0])
        end = min(first[one][1], second[other][1])
        if start < end:
            yield start, end
        if first[one][1] < second[other][1]:
            one += 1
        else:
            other += 1


def without(spans: Spans, removed: Spans) -> Spans:
    """Return the time that is in `spans` and not in `removed`."""
    if not spans:
        return ()
    ends = [spans[0][0], *(moment for span in removed for moment in span), spans[-1][1]]
    between = [(start, end) for start, end in zip(ends[::2], ends[1::2], strict=True) if start < end]
    return common(spans, tuple(between))


def total(spans: Spans) -> float:
    return sum(end - start for start, end in spans)


def bridged(spans: Spans, known: Spans) -> Spans:
    """Extend spans over gaps: what held when a gap began lasts until something else is known."""
    return union((start, _resumed(end, known)) for start, end in spans)


def _resumed(end: float, known: Spans) -> float:
    return next((max(end, start) for start, until in known if until > end), end)


def toggled(changes: Iterable[tuple[float, bool]], end: float) -> Spans:
    """Return the spans in which something held. `changes`: when it began (True) and ceased (False) to hold, in order."""
    found: list[Span] = []
    since: float | None = None
    for at, holds in changes:
        if holds and since is None:
            since = at
        elif not holds and since is not None:
            found.append((since, at))
            since = None
    return union(found if since is None else [*found, (since, end)])
