"""Parses Slurm's host lists. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

_PART = re.compile(r"([^,\[\]]+|\[[^\]]*\])")


_RANGES = re.compile(r"\[(\d*)[^\]]*\]?")


def first_host(hostlist: str) -> str:
    """Returns the first node of a list, which may be truncated after it."""
    return _RANGES.sub(r"\1", hostlist).partition(",")[0]


def in_hostlist(node: str, hostlist: str) -> bool:
    """True if a hostlist such as `n[1-3,007],m5` names this node."""
    return any(_matches(node, parts) for parts in _hosts(hostlist))


def _hosts(hostlist: str) -> Iterator[list[str]]:
    """Yields the parts of each entry; commas within brackets do not separate entries."""
    parts: list[str] = []
    end = 0
    for match in _PART.finditer(hostlist):
        if "," in hostlist[end : match.start()] and parts:
            yield parts
            parts = []
        parts.append(match[0])
        end = match.end()
    if parts:
        yield parts


def _matches(name: str, parts: list[str]) -> bool:
    if not parts:
        return not name
    if not parts[0].startswith("["):
        return name.startswith(parts[0]) and _matches(name[len(parts[0]) :], parts[1:])
    digits = re.match(r"\d+", name)
    if digits is None:
        return False
    lengths = range(1, len(digits[0]) + 1)
    return any(_in_ranges(name[:n], parts[0][1:-1]) and _matches(name[n:], parts[1:]) for n in lengths)


def _in_ranges(digits: str, ranges: str) -> bool:
    for item in ranges.split(","):
        first, _, last = item.partition("-")
        last = last or first
        if not (first.isdecimal() and last.isdecimal() and int(first) <= int(digits) <= int(last)):
            continue
        padded = max(len(str(int(digits))), len(first) if first.startswith("0") else 0)
        if len(digits) == padded:
            return True
    return False
