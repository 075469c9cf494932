"""Text for a terminal: columns, and strings made safe to print."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpuwarden.base.printable import clean

__all__ = ("clean", "event_data", "table", "when", "wrapped")

_ONLY_IN_JSON = ("first_boottime", "first_wall", "latch")  # of events: only the daemon needs them

_HANGING = 4


def event_data(data: Mapping[str, object]) -> str:
    """The data of an event on one line: `name=value`, without empty values."""
    shown = {name: value for name, value in data.items() if name not in _ONLY_IN_JSON and value not in ("", None)}
    return " ".join(f"{clean(name)}={clean(value)}" for name, value in shown.items())


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def wrapped(lines: Iterable[str], columns: int) -> Iterator[str]:
    """Yield the lines of a terminal with that many columns. The rest of a line is indented below it."""
    for line in lines:
        rest = line
        indent = " " * min(len(line) - len(line.lstrip()) + _HANGING, columns // 4)
        while len(rest) > columns:
            cut = rest.rfind(" ", len(indent) + 1, columns + 1)
            cut = columns if cut < 0 else cut
            yield rest[:cut].rstrip()
            rest = indent + rest[cut:].lstrip()
        yield rest


def when(time: str | None) -> str:
    """Format an RFC 3339 time in UTC to the second, in a readable form."""
    return f"{clean(time)[:19].replace('T', ' ')} UTC" if time else "never"
