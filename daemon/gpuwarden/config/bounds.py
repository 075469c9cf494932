"""Finds values of the configuration outside the bounds of their fields."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any

from gpuwarden.base.durations import format_duration
from gpuwarden_collectors.options import Bounds, Misfit, PolledOptions, bounds, keys


def misfits(table: Any, path: str = "") -> Iterator[Misfit]:
    """Yields the values out of bounds in a table and its subtables, and the misfits that polled sources report."""
    if isinstance(table, dict):  # each subclass of Mapping would keep a reference to each class that it was asked about
        for name, value in table.items():
            yield from misfits(value, _below(path, name))
    elif is_dataclass(table):
        for key in keys(table):
            value, here = getattr(table, key.name), _below(path, key.name)
            limits = bounds(key)
            if limits is None:
                yield from misfits(value, here)
            elif value is not None and not limits.least <= value <= limits.most:
                yield (here,), _outside(value, limits)
        if isinstance(table, PolledOptions):
            for names, message in table.misfits():
                yield tuple(_below(path, name) for name in names), message


def allowed(limits: Bounds, kind: type) -> str:
    """Format bounds, such as `1s to 1m`."""
    show = format_duration if kind is float else str
    return f"{show(limits.least)} to {show(limits.most)}"


def _outside(value: float, limits: Bounds) -> str:
    shown = format_duration(value) if isinstance(value, float) else value if abs(value) < 10**9 else "a huge number"
    why = f": {limits.why}" if limits.why else ""
    return f"expected {allowed(limits, type(value))}, found {shown}{why}"


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
