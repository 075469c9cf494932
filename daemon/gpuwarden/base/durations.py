"""Converts durations between text (`500ms`, `5s`, `10m`, `2h`, `28d`) and seconds."""

from __future__ import annotations

import re

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,3})?) ?(ms|s|m|h|d)", re.ASCII)

EXPECTED = 'a duration such as "500ms", "5s", "10m", "2h" or "28d"'


def parse_duration(text: str) -> float:
    """Parse a duration into seconds, rounded to microseconds. Raises ValueError without a number or a valid unit."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"expected {EXPECTED}, found {text[:60]!r}")
    return round(float(match[1]) * _UNITS[match[2]], 6)


def format_duration(seconds: float) -> str:
    """Format a duration in the largest unit that needs no fraction, as `parse_duration` reads it."""
    for unit in ("d", "h", "m", "s"):
        if seconds and seconds % _UNITS[unit] == 0:
            return f"{seconds / _UNITS[unit]:.0f}{unit}"
    return f"{seconds * 1000:.12g}ms" if seconds else "0s"
