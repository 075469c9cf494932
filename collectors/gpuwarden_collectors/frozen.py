"""Copies of frozen slotted dataclasses with some other values, where `dataclasses.replace` takes too long."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, make_dataclass
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar

Value = TypeVar("Value")


@cache
def values_of(kind: Any) -> Callable[[Any], Sequence[Any]]:
    """What gives the values of all fields of such a class, in their order."""
    names = [field.name for field in fields(kind)]
    return attrgetter(*names) if len(names) > 1 else lambda value: (getattr(value, names[0]),)


@cache
def _thawed(kind: Any) -> Callable[..., Any]:
    return make_dataclass(kind.__name__, [field.name for field in fields(kind)], slots=True)


def with_values(old: Value, values: Mapping[str, Any]) -> Value:
    """As `dataclasses.replace` for a class that has no hooks; five times as fast.

    A frozen class writes each of its fields through `object.__setattr__`. Its thawed twin, which has the same slots, does it
    in one instruction, and becomes one of the class by assignment to `__class__`.
    """
    kind: Any = type(old)
    new = _thawed(kind)(*values_of(kind)(old))
    for name, value in values.items():
        setattr(new, name, value)
    new.__class__ = kind
    made: Value = new
    return made
