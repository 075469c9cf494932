"""What an event says, typed: for each kind a frozen dataclass, made of the JSON in the ledger and written into it. Pure.

The fields of such a class are the keys, in their order. One without a default is always written; one with a default is left out
while it has that; None is written only where `null` allows it. A `Stamp` named x, or with `key(x)`, is the keys x_boottime and
x_wall. The annotation `Annotated[X, check]` bounds what is read: `check(x)` gives the value, or raises CodecError.

Reading never fails, since a ledger may be of another version, or edited: what is missing or is no value of its field becomes the
default, or that of `otherwise`, or nothing ("", 0, False, None). Keys that the class does not name stay in the event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, fields
from enum import StrEnum
from functools import cache, partial
from operator import itemgetter
from types import NoneType
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from gpuwarden.health.model import Json
from gpuwarden_collectors.codec import CodecError, from_wire
from gpuwarden_collectors.facts import Stamp

Data = TypeVar("Data")

_TIME_MOST = 1e12
"""Seconds: 30,000 years. What is no time at all, such as NaN, is not below it either."""


def otherwise(value: object) -> Mapping[str, object]:
    """Metadata of a field that is always written, and read as `value` where the event has none that this version knows."""
    return {"otherwise": value}


def null() -> Mapping[str, object]:
    """Metadata of a field without a default that is always written, as null where it is None."""
    return {"null": True}


def key(name: str) -> Mapping[str, object]:
    """Metadata of a field whose key has another name."""
    return {"key": name}


def cut(most: int) -> Callable[[str], str]:
    """For `Annotated`: no more characters than `most` are read."""
    return itemgetter(slice(most))


class _Key(NamedTuple):
    """`omitted`: values of the field that are not written."""

    field: str
    name: str
    read: Callable[[Mapping[str, Json]], Any]
    omitted: tuple[object, ...]


_EMPTY: Mapping[Any, object] = {str: "", bool: False, int: 0, float: 0.0}


def read(kind: type[Data], data: Mapping[str, Json]) -> Data:
    made: Any = kind
    return kind(**{one.field: one.read(data) for one in _keys(made)})


def write(event_data: object) -> dict[str, Json]:
    data: dict[str, Json] = {}
    kind: Any = type(event_data)
    for field, name, _, omitted in _keys(kind):
        value = getattr(event_data, field)
        if value in omitted:
            continue
        if isinstance(value, Stamp):
            data |= stamp_data(name, value)
        else:
            data[name] = value.value if isinstance(value, StrEnum) else value
    return data


@cache
def _keys(kind: Any) -> tuple[_Key, ...]:
    hints = get_type_hints(kind, include_extras=True)
    return tuple(_key(one, hints[one.name]) for one in fields(kind))


def _key(one: Field[Any], hint: Any) -> _Key:
    hint, *checks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if NoneType in get_args(hint):
        nothing: object = None
    else:
        nothing = one.metadata["otherwise"] if "otherwise" in one.metadata else _EMPTY.get(hint)
    fallback = nothing if one.default is MISSING else one.default
    name = one.metadata.get("key", one.name)
    read_value = partial(read_stamp, name=name) if Stamp in get_args(hint) else _value(name, hint, checks, fallback)
    omitted = () if "null" in one.metadata else (None,) if one.default is MISSING else (None, one.default)
    return _Key(one.name, name, read_value, omitted)


def _value(
    name: str, hint: Any, checks: Iterable[Callable[[Any], Any]], fallback: object
) -> Callable[[Mapping[str, Json]], Any]:
    def read_value(data: Mapping[str, Json]) -> Any:
        if name not in data:
            return fallback
        try:
            value = from_wire(hint, data[name])
            for check in checks:
                value = check(value)
        except CodecError:
            return fallback
        return value

    return read_value


def stamp_data(name: str, stamp: Stamp) -> dict[str, Json]:
    return {f"{name}_boottime": stamp.boottime, f"{name}_wall": stamp.wall}


def read_stamp(data: Mapping[str, Json], name: str) -> Stamp | None:
    """None where there is none, or no time at all."""
    boottime, wall = data.get(f"{name}_boottime"), data.get(f"{name}_wall")
    if not isinstance(boottime, int | float) or not isinstance(wall, int | float):
        return None
    return Stamp(float(boottime), float(wall)) if abs(boottime) < _TIME_MOST and abs(wall) < _TIME_MOST else None
