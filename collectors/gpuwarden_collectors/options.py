"""Declares keys of the configuration: dataclass fields with bounds in the metadata and the meaning in the docstring.

Each table of the configuration is such a class, in the package that uses it. A `float` field is a duration in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, field, fields
from typing import Any, NamedTuple, TypeVar

from gpuwarden_collectors.dataclass import dataclass

Value = TypeVar("Value")
Table = TypeVar("Table", bound=type)
_BOUNDS, _INTERNAL, _SEARCHED, _TEXT_LIST = "bounds", "internal", "searched", "text_list"


class Bounds(NamedTuple):
    """Inclusive bounds of a value. `why`: what happens beyond them, for users; may be empty."""

    least: float
    most: float
    why: str


def bounded(default: Value, least: float, most: float, why: str = "") -> Value:
    """Return a field whose values must be from `least` to `most`. `why`: the reason of the bounds, for the error."""
    return field(default=default, metadata={_BOUNDS: Bounds(least, most, why)})


def internal(default: Value, *, compare: bool = True) -> Value:
    """Returns a field that neither the file nor the environment can set."""
    return field(default=default, compare=compare, metadata={_INTERNAL: True})


SEPARATOR = ":"
"""Separates paths that are tried in order."""


def searched() -> Any:
    """Returns a key for paths that are tried in order: a text or a list, stored with SEPARATOR; empty by default."""
    return field(default="", metadata={_SEARCHED: True})


def is_searched(key: Field[Any]) -> bool:
    return _SEARCHED in key.metadata


def text_list(*default: str) -> Any:
    """Returns a key for one text or a list of texts, stored as a tuple."""
    return field(default=default, metadata={_TEXT_LIST: True})


def is_text_list(key: Field[Any]) -> bool:
    return _TEXT_LIST in key.metadata


def keys(table: Any) -> Iterator[Field[Any]]:
    """Returns the fields of a table, or of its class, that users can set."""
    return (each for each in fields(table) if _INTERNAL not in each.metadata)


def bounds(key: Field[Any]) -> Bounds | None:
    declared: Bounds | None = key.metadata.get(_BOUNDS)
    return declared


def with_tables(tables: Mapping[str, type]) -> Callable[[Table], Table]:
    """Returns a decorator that appends a field for each of these tables to a class. Apply it before `dataclass`."""

    def extended(cls: Table) -> Table:
        for name, table in tables.items():
            cls.__annotations__[name] = table
            setattr(cls, name, field(default_factory=table))
        return cls

    return extended


Misfit = tuple[tuple[str, ...], str]
"""The affected keys, and a text of the fault."""


@dataclass(frozen=True, slots=True)
class PolledOptions:
    """A source that is read at an interval."""

    enabled: bool = True
    """Read this source."""
    interval: float = bounded(30.0, 1.0, 60.0)
    """Time between two passes."""
    deadline: float = bounded(10.0, 0.1, 60.0)
    """Time limit of a pass."""

    def misfits(self) -> Iterator[Misfit]:
        """Returns faults of values that are within their bounds but inconsistent."""
        return iter(())
