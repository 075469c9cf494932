"""Wraps the prose of Markdown pages at 120 columns: `make docs`. Tables, code and headings stay as they are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
COLUMNS = 120
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "job/README.md")),
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("grafana/**/*.md")),
]
"""Without CHANGELOG.md, whose lines are entries."""

_POINT = re.compile(r"( *(?:[-*]|\d+\.) +)")
_UNWRAPPABLE = re.compile(r"[|#<]|!\[|---")
"""The start of a line that is a table, heading, comment, picture or rule."""
_WORD = re.compile(r"(?:`[^`\n]*`|[^\s`]|`)+")
"""A word; text in backticks is part of one."""
_MARKUP = re.compile(r"[-+*=>]+$|\d+[.)]$|[#>|]")
"""A word that must not begin a line, where it would be markup."""


def wrapped(text: str) -> str:
    """The page, with each paragraph and point that has a line of more than 120 characters wrapped again."""
    return "".join(
        _fill(block) if wraps and any(len(line) > COLUMNS for line in block) else "".join(f"{line}\n" for line in block)
        for wraps, block in _blocks(text.splitlines())
    )


def prose(text: str) -> Iterator[str]:
    """Return the lines of the page that `wrapped` may change."""
    for wraps, block in _blocks(text.splitlines()):
        if wraps:
            yield from block


def _blocks(lines: list[str]) -> Iterator[tuple[bool, list[str]]]:
    """Yield paragraphs and list items with True, all other lines one by one with False."""
    block: list[str] = []
    fence = ""
    for line in lines:
        bare = line.strip()
        begins, fixed = bool(_POINT.match(line)), bool(fence) or not bare or bool(_UNWRAPPABLE.match(bare))
        fixed = fixed or bare.startswith("```")
        if block and (fixed or begins):
            yield True, block
            block = []
        if fixed:
            yield False, [line]
        else:
            block.append(line)
        if bare.startswith("```"):
            fence = "" if fence else bare
    if block:
        yield True, block


def _fill(block: list[str]) -> str:
    point = _POINT.match(block[0])
    first = point[1] if point else re.match(" *", block[0])[0]  # type: ignore[index] # it matches every text
    words: list[str] = []
    for word in _WORD.findall(" ".join(block)[len(first) :]):
        if words and _MARKUP.match(word):
            words[-1] += f" {word}"
        else:
            words.append(word)
    lines, line = [], first + words[0]
    for word in words[1:]:
        if len(line) + 1 + len(word) <= COLUMNS:
            line += f" {word}"
        else:
            lines.append(line)
            line = " " * len(first) + word
    return "\n".join((*lines, line)) + "\n"


def main() -> None:
    for page in PAGES:
        page.write_text(wrapped(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
