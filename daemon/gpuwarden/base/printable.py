"""Strings made safe to print."""

from __future__ import annotations

import json


def clean(value: object) -> str:
    """Escape control characters: names and kernel log lines may contain text of users."""
    text = value if isinstance(value, str) else json.dumps(value)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def one_line(text: str, most: int) -> str:
    """Return the first `most` characters, with a space for each that is not printable."""
    return "".join(char if char.isprintable() else " " for char in text[:most])
