"""How a key of the configuration is declared: a field of a dataclass, with its bounds in the metadata and its meaning in the docstring below it.

Every table of the configuration is such a class, in the package that uses its values. A `float` field is a duration, in seconds.
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
    """Both values included. `why`: what goes wrong beyond them, for people; may be empty."""

    least: float
    most: float
    why: str


def bounded(default: Value, least: float, most: float, why: str = "") -> Value:
    """Return a field whose values must be from `least` to `most`. `why`: the reason of the bounds, for the error."""
    return field(default=default, metadata={_BOUNDS: Bounds(least, most, why)})


def internal(default: Value, *, compare: bool = True) -> Value:
    """A field that no file and no variable can set."""
    return field(default=default, compare=compare, metadata={_INTERNAL: True})


SEPARATOR = ":"
"""Between paths that are tried in order."""


def searched() -> Any:
    """A key with paths to be tried in order: one text, or a list, which is kept as a text with SEPARATOR. Empty by default."""
    return field(default="", metadata={_SEARCHED: True})


def is_searched(key: Field[Any]) -> bool:
    return _SEARCHED in key.metadata


def text_list(*default: str) -> Any:
    """A key with one text or a list of texts, kept as a tuple."""
    return field(default=default, metadata={_TEXT_LIST: True})


def is_text_list(key: Field[Any]) -> bool:
    return _TEXT_LIST in key.metadata


def keys(table: Any) -> Iterator[Field[Any]]:
    """The fields of a table, or of its class, that a file can set."""
    return (each for each in fields(table) if _INTERNAL not in each.metadata)


def bounds(key: Field[Any]) -> Bounds | None:
    declared: Bounds | None = key.metadata.get(_BOUNDS)
    return declared


def with_tables(tables: Mapping[str, type]) -> Callable[[Table], Table]:
    """Give a class a field for each of these tables, after its own; to be applied before `dataclass`."""

    def extended(cls: Table) -> Table:
        for name, table in tables.items():
            cls.__annotations__[name] = table
            setattr(cls, name, field(default_factory=table))
        return cls

    return extended


Misfit = tuple[tuple[str, ...], str]
"""The keys that a fault is of, the first that was given first, and what is wrong."""


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
        """Values of this table that are within their bounds and yet wrong, by their keys."""
        return iter(())
