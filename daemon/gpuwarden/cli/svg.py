"""Elements of plots as inline SVG without scripts. Escapes every text."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

WIDTH = 900


def svg(height: float, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" width="100%" role="img">{"".join(parts)}</svg>'


def bar(x: float, y: float, wide: float, tall: float, *, colour: str, title: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{max(0.0, wide):.1f}" height="{max(0.0, tall):.1f}"'
    return f'<rect {place} fill="{colour}"><title>{escape(title)}</title></rect>'


def line(points: Sequence[tuple[float, float]], *, colour: str, title: str) -> str:
    """Draw a line through these points."""
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="1.5"><title>{escape(title)}</title></polyline>'


def text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
