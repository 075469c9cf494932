"""A self-contained HTML document with inline styles and plots, without scripts. Escapes every value."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 960px; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: .5em 0 1.5em; font-size: 13px } th, td { text-align: left; padding: 2px 12px 2px 0 }
th { border-bottom: 1px solid #999 } td { border-bottom: 1px solid #eee; vertical-align: top } svg { font-size: 12px }
.key span { display: inline-block; padding: 0 .6em; margin-right: 1em; color: #fff }
pre { font-size: 12px; white-space: pre-wrap; background: #f6f6f6; padding: .6em }
"""


def page(title: str, body: str) -> str:
    """Return the document. `body` is HTML."""
    policy = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    head = f'<meta charset="utf-8">{policy}<title>{escape(title)}</title><style>{_STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n<h1>{escape(title)}</h1>\n{body}\n</body></html>\n'


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, most: int, all_of: str) -> str:
    """Return a table of texts. `all_of`: where to find all rows if there are more than `most`."""
    if not rows:
        return "<p>None.</p>"
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    lines = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows[:most]]
    more = f"<p>… {len(rows) - most} more: {escape(all_of)} has all</p>" if len(rows) > most else ""
    return f"<table><tr>{top}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>{more}"


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
