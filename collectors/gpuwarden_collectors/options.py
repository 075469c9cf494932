"""How a key of the configuration is declared: a field of a dataclass, with its bounds in the metadata and its meaning in the docstring below it.

Every table of the configuration is such a class, in the package that uses its values. A `float` field is a duration, in seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import Field, field, fields
from typing import Any, NamedTuple, TypeVar

Value = TypeVar("Value")
_BOUNDS, _INTERNAL = "bounds", "internal"


class Bounds(NamedTuple):
    """Both values included. `why`: what goes wrong beyond them, for people; may be empty."""

    least: float
    most: float
    why: str


def bounded(default: Value, least: float, most: float, why: str = "") -> Value:
    """A key with bounds."""
    return field(default=default, metadata={_BOUNDS: Bounds(least, most, why)})


def internal(default: Value, *, compare: bool = True) -> Value:
    """A field that no file and no variable can set."""
    return field(default=default, compare=compare, metadata={_INTERNAL: True})


def keys(table: Any) -> Iterator[Field[Any]]:
    """The fields of a table, or of its class, that a file can set."""
    return (each for each in fields(table) if _INTERNAL not in each.metadata)


def bounds(key: Field[Any]) -> Bounds | None:
    found: Bounds | None = key.metadata.get(_BOUNDS)
    return found
