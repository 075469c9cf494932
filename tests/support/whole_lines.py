"""What another process has written to a file so far: whole lines, whenever it is asked."""

from __future__ import annotations

from pathlib import Path


def whole_lines(path: Path) -> str:
    """Return the lines that have come to their end: who reads while another writes may see the half of one. Empty without the file."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return ""
    return data[: data.rfind(b"\n") + 1].decode()
