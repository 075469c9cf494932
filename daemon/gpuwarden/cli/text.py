"""Text for a terminal: columns, and strings made safe to print."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence


def clean(value: object) -> str:
    """`value` without anything that would move the cursor: names and kernel log lines hold what users put into them."""
    text = value if isinstance(value, str) else json.dumps(value)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def when(time: str | None) -> str:
    """RFC 3339 in UTC, to the second and easier on the eye."""
    return f"{clean(time)[:19].replace('T', ' ')} UTC" if time else "never"
