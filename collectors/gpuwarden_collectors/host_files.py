"""Bounded reads of small files in /proc and /sys, and parsing of their numbers and texts."""

from __future__ import annotations

import os
from pathlib import Path

PAGE = 4096  # no sysfs attribute is longer


def read_bytes(path: Path | str, limit: int = PAGE) -> bytes:
    """Returns up to `limit` bytes, in as many reads as needed: a /proc file returns about a page per read.

    Raises OSError.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = b""
        while len(data) < limit and (more := os.read(file, limit - len(data))):
            data += more
        return data
    finally:
        os.close(file)


def read_text(path: Path | str, limit: int = PAGE) -> str:
    """Returns what `read_bytes` reads as stripped text; bytes that are not ASCII are replaced."""
    return read_bytes(path, limit).decode("ascii", "replace").strip()


def text_or_empty(path: Path | str) -> str:
    """Returns what `read_text` returns, or "" for a file that cannot be read."""
    try:
        return read_text(path)
    except OSError:
        return ""


def number(text: str) -> int | None:
    """Parses a count; returns None for anything else (`N/A (no PMA)`, an empty file)."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 20 else None


def printable(text: str, most: int) -> str:
    """The first `most` characters; unprintable ones are replaced by question marks."""
    cut = text[:most]
    return cut if cut.isprintable() else "".join(char if char.isprintable() else "?" for char in cut)
