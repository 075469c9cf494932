"""Typed data of events: converts between the JSON in the ledger and a frozen dataclass for each kind. Pure.

Fields are keys, in their order. A field without a default is always written; a field with a default is omitted while it
has that value; None is written only if `null` allows it. A `Stamp` named x, or with `key(x)`, is stored as x_boottime
and x_wall. `Annotated[X, check]` bounds values that are read: `check(x)` returns the value or raises CodecError. A
field of `OTHER_KEYS` holds the keys of no other field, such as the evidence of a finding.

Reading never fails, since a ledger may be from another version, or edited. A missing or invalid value becomes the
default, the value of `otherwise`, or empty ("", 0, False, None). Keys without a field stay in the event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from enum import StrEnum
from functools import cache
from operator import itemgetter
from types import NoneType
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from gpuwarden.health.model import Event, Json
from gpuwarden_collectors.codec import CodecError, form_of
from gpuwarden_collectors.facts import Stamp

Data = TypeVar("Data")

_TIME_MOST = 1e12
"""Seconds: 30,000 years. Comparison with this limit also rejects NaN."""


def no_key() -> Mapping[str, object]:
    """Return metadata of a field that is no key. Without a default it is an attribute of the event: `at`, `boot_id`."""
    return {"no_key": True}


def always() -> Mapping[str, object]:
    """Return metadata of a field that is also written while it has its default."""
    return {"always": True}


def otherwise(value: object) -> Mapping[str, object]:
    """Return metadata of a field that is always written, and read as `value` if missing or unknown to this version."""
    return {"otherwise": value}


def null() -> Mapping[str, object]:
    """Return metadata of a field without a default that is always written, None as null."""
    return {"null": True}


def key(name: str) -> Mapping[str, object]:
    """Return metadata of a field whose key has another name."""
    return {"key": name}


def cut(most: int) -> Callable[[str], str]:
    """Return a check for `Annotated` that reads at most `most` characters."""
    return itemgetter(slice(most))


OTHER_KEYS: Mapping[str, object] = {"other_keys": True}
"""Metadata of a field of type `Evidence`, which holds the keys of no other field."""


class _Class(NamedTuple):
    """Description of one class for writing, and for reading in one pass over its keys: a start reads 100,000 events."""

    written: tuple[tuple[str, str, tuple[object, ...]], ...]
    """Fields, each with its key and the values that are not written."""
    fallbacks: Mapping[str, object]
    """By field: its value if the event has none."""
    forms: Mapping[str, tuple[str, frozenset[type], Callable[[Any], Any]]]
    """By key: its field, the types taken unchanged, and the reader of other types."""
    stamps: tuple[tuple[str, str, str], ...]
    """Fields of type `Stamp`, each with its two keys."""
    others: str | None
    """The field of `OTHER_KEYS`."""
    of_event: tuple[str, ...]
    """Fields that are attributes of the event."""


_EMPTY: Mapping[Any, object] = {str: "", bool: False, int: 0, float: 0.0}


def read(kind: type[Data], event: Event) -> Data:
    made: Any = kind
    _, fallbacks, forms, stamps, others, of_event = _class(made)
    values: dict[str, Any] = {**fallbacks}
    rest: dict[str, Json] = {}
    for name, value in event.data.items():
        if name not in forms:
            rest[name] = value
            continue
        field, plain, read_value = forms[name]
        try:
            values[field] = value if type(value) in plain else read_value(value)
        except CodecError:
            continue  # keep the fallback
    for field, boottime, wall in stamps:
        values[field] = _stamp(values.pop(boottime, None), values.pop(wall, None))
    if others is not None:
        values[others] = rest
    for field in of_event:
        values[field] = getattr(event, field)
    return kind(**values)


def write(event_data: object) -> dict[str, Json]:
    data: dict[str, Json] = {}
    kind: Any = type(event_data)
    for field, name, omitted in _class(kind).written:
        value = getattr(event_data, field)
        if value in omitted:
            continue
        if isinstance(value, Stamp):
            data |= {f"{name}_boottime": value.boottime, f"{name}_wall": value.wall}
        elif isinstance(value, Mapping):
            data |= value
        else:
            data[name] = value.value if isinstance(value, StrEnum) else value
    return data


@cache
def _class(kind: Any) -> _Class:
    hints = get_type_hints(kind, include_extras=True)
    all_fields = [field for field in fields(kind) if "no_key" not in field.metadata]
    keys = {field.name: field.metadata.get("key", field.name) for field in all_fields}
    others = next((field.name for field in all_fields if "other_keys" in field.metadata), None)
    stamps = [
        (field.name, f"{keys[field.name]}_boottime", f"{keys[field.name]}_wall")
        for field in all_fields
        if Stamp in get_args(hints[field.name])
    ]
    plain = [candidate for candidate in all_fields if candidate.name not in (others, *(field for field, *_ in stamps))]
    times = {name: (name, *form_of(float)) for _, *names in stamps for name in names}
    return _Class(
        written=tuple((field.name, keys[field.name], _omitted(field)) for field in all_fields),
        fallbacks={field.name: _fallback(field, hints[field.name]) for field in plain},
        forms={keys[field.name]: (field.name, *_form(hints[field.name])) for field in plain} | times,
        stamps=tuple(stamps),
        others=others,
        of_event=tuple(field.name for field in fields(kind) if "no_key" in field.metadata and field.default is MISSING),
    )


def _omitted(field: Field[Any]) -> tuple[object, ...]:
    if "null" in field.metadata:
        return ()
    return (None,) if field.default is MISSING or "always" in field.metadata else (None, field.default)


def _fallback(field: Field[Any], hint: Any) -> object:
    if field.default is not MISSING:
        return field.default
    hint = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    return None if NoneType in get_args(hint) else field.metadata.get("otherwise", _EMPTY.get(hint))


def _form(hint: Any) -> tuple[frozenset[type], Callable[[Any], Any]]:
    hint, *checks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    plain, read_value = form_of(hint)

    def read_checked(value: Any) -> Any:
        value = value if type(value) in plain else read_value(value)
        for check in checks:
            value = check(value)
        return value

    return (frozenset(), read_checked) if checks else (plain, read_value)


def _stamp(boottime: float | None, wall: float | None) -> Stamp | None:
    """Return the stamp of both times, or None if one is missing or out of range."""
    if boottime is None or wall is None:
        return None
    return Stamp(boottime, wall) if abs(boottime) < _TIME_MOST and abs(wall) < _TIME_MOST else None
