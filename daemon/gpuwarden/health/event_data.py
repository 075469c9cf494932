"""What an event says, typed: for each kind a frozen dataclass, made of the JSON in the ledger and written into it. Pure.

The fields of such a class are the keys, in their order. One without a default is always written; one with a default is left out
while it has that; None is never written. A `Stamp` named x is the keys x_boottime and x_wall.

Reading never fails, since a ledger may be of another version, or edited: what is missing or is no value of its field becomes the
default, or that of `otherwise`, or nothing ("", 0, False, None). Keys that the class does not name stay in the event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from enum import StrEnum
from functools import cache, partial
from types import NoneType
from typing import Any, NamedTuple, TypeVar, get_args, get_type_hints

from gpuwarden.health.model import Json
from gpuwarden_collectors.codec import CodecError, from_wire
from gpuwarden_collectors.facts import Stamp

Data = TypeVar("Data")

_TIME_MOST = 1e12
"""Seconds: 30,000 years. What is no time at all, such as NaN, is not below it either."""


def otherwise(value: object) -> Mapping[str, object]:
    """Metadata of a field that is always written, and read as `value` where the event has none that this version knows."""
    return {"otherwise": value}


class _Key(NamedTuple):
    name: str
    read: Callable[[Mapping[str, Json]], Any]
    omitted: object


_NOTHING = object()  # equal to no value
_EMPTY: Mapping[Any, object] = {str: "", bool: False, int: 0, float: 0.0}


def read(kind: type[Data], data: Mapping[str, Json]) -> Data:
    made: Any = kind
    return kind(**{key.name: key.read(data) for key in _keys(made)})


def write(event_data: object) -> dict[str, Json]:
    data: dict[str, Json] = {}
    kind: Any = type(event_data)
    for name, _, omitted in _keys(kind):
        value = getattr(event_data, name)
        if value is None or value == omitted:
            continue
        if isinstance(value, Stamp):
            data |= stamp_data(name, value)
        else:
            data[name] = value.value if isinstance(value, StrEnum) else value
    return data


@cache
def _keys(kind: Any) -> tuple[_Key, ...]:
    hints = get_type_hints(kind)
    return tuple(_key(one, hints[one.name]) for one in fields(kind))


def _key(one: Field[Any], hint: Any) -> _Key:
    if NoneType in get_args(hint):
        nothing: object = None
    else:
        nothing = one.metadata["otherwise"] if "otherwise" in one.metadata else _EMPTY.get(hint)
    fallback = nothing if one.default is MISSING else one.default
    read_value = partial(read_stamp, name=one.name) if Stamp in get_args(hint) else _value(one.name, hint, fallback)
    return _Key(one.name, read_value, _NOTHING if one.default is MISSING else one.default)


def _value(name: str, hint: Any, fallback: object) -> Callable[[Mapping[str, Json]], Any]:
    def read_value(data: Mapping[str, Json]) -> Any:
        if name not in data:
            return fallback
        try:
            return from_wire(hint, data[name])
        except CodecError:
            return fallback

    return read_value


def stamp_data(name: str, stamp: Stamp) -> dict[str, Json]:
    return {f"{name}_boottime": stamp.boottime, f"{name}_wall": stamp.wall}


def read_stamp(data: Mapping[str, Json], name: str) -> Stamp | None:
    """None where there is none, or no time at all."""
    boottime, wall = data.get(f"{name}_boottime"), data.get(f"{name}_wall")
    if not isinstance(boottime, int | float) or not isinstance(wall, int | float):
        return None
    return Stamp(float(boottime), float(wall)) if abs(boottime) < _TIME_MOST and abs(wall) < _TIME_MOST else None
