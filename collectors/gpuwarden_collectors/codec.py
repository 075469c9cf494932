"""Converts frozen dataclasses to JSON and back, for worker messages, traces and test data.

`to_wire` returns plain JSON values. It omits fields that have their default value, and None if a field has no default.
`from_wire` parses JSON by the annotations of the class. It ignores unknown keys, which a newer writer may add, and
raises a `CodecError` with the path of a value whose type does not match.
Supported annotations: bool, int, float, str, StrEnum, `Literal` of texts, dataclass, `tuple[X, ...]`,
`Mapping[str, X]`, `X | None`, and unions of dataclasses, which are tagged with the class name under the key `type`.
"""

from __future__ import annotations

import dataclasses
import reprlib
import typing
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, NamedTuple, TypeVar, overload

Value = TypeVar("Value")


class CodecError(ValueError):
    """The data does not match the class. `path` locates the value, as in `gpus[3].readings.temperature`."""

    def __init__(self, problem: str, path: str = "") -> None:
        super().__init__(f"{path.removeprefix('.')}: {problem}" if path else problem)
        self.problem = problem
        self.path = path

    def below(self, step: str) -> CodecError:
        return CodecError(self.problem, step + self.path)


class _Form(NamedTuple):
    """The JSON form of the values of one annotation.

    `plain`: types that need no conversion. `read` converts any other JSON value, or raises CodecError. `write` is None
    if every value is its own JSON.
    """

    plain: frozenset[type]
    read: Callable[[Any], Any]
    write: Callable[[Any], Any] | None


class _Field(NamedTuple):
    """A field of a class in JSON.

    A field whose value is `omitted` is not written. With `owed` the constructor has no default and needs a value.
    """

    name: str
    form: _Form
    omitted: Any
    owed: bool = False


_NOTHING = object()  # equal to no value: such a field is always written


def to_wire(value: object, kind: object = None) -> Any:
    """Returns the JSON values for `value`.

    `kind` is the argument of the later `from_wire`, if that is a union and not the class of `value`.
    """
    write = _form(type(value) if kind is None else kind).write
    return value if write is None else write(value)


@overload
def from_wire(kind: type[Value], data: object) -> Value: ...
@overload
def from_wire(kind: UnionType, data: object) -> Any: ...
def from_wire(kind: Any, data: object) -> Any:
    """The value of class (or union) `kind` that `data` represents. Raises CodecError."""
    form = _form(kind)
    return data if type(data) in form.plain else form.read(data)


def form_of(kind: Any) -> tuple[frozenset[type], Callable[[Any], Any]]:
    """Returns the types that `from_wire` returns unchanged, and the reader of other values, for frequent reads."""
    return _form(kind)[:2]


@cache
def _form(kind: Any) -> _Form:
    if kind in (bool, int, str, NoneType):
        return _Form(frozenset({kind}), _refusal("null" if kind is NoneType else kind.__name__), None)
    if kind is float:
        return _float_form()
    if typing.get_origin(kind) in (tuple, Mapping):
        make = _tuple_form if typing.get_origin(kind) is tuple else _mapping_form
        return make(*typing.get_args(kind))
    if typing.get_origin(kind) in (UnionType, typing.Union):
        return _union_form(typing.get_args(kind))
    if typing.get_origin(kind) is typing.Literal or (isinstance(kind, type) and issubclass(kind, StrEnum)):
        return _choice_form(typing.get_args(kind) or kind)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _class_form(kind)
    raise TypeError(f"no JSON form is defined for {kind!r}")


def _refusal(expected: str) -> Callable[[Any], Any]:
    def refuse(data: Any) -> Any:
        raise CodecError(f"expected {expected}, found {type(data).__name__} {reprlib.repr(data)}")

    return refuse


def _float_form() -> _Form:
    refuse = _refusal("float")

    def read(data: Any) -> Any:
        # beyond 2**1000 an int may be too large for any float
        return float(data) if type(data) is int and data.bit_length() <= 1000 else refuse(data)

    return _Form(frozenset({float}), read, None)


def _choice_form(choices: Iterable[str]) -> _Form:
    """Returns the form of texts, or of the members of an enumeration, which are texts too."""
    values = {str(choice): choice for choice in choices}
    refuse = _refusal(f"one of {', '.join(filter(None, values))}")

    def read(data: Any) -> Any:
        return values[data] if type(data) is str and data in values else refuse(data)

    return _Form(frozenset(), read, str)


def _tuple_form(*arguments: Any) -> _Form:
    if len(arguments) != 2 or arguments[1] is not Ellipsis:
        raise TypeError("of tuples, only tuple[X, ...] has a JSON form")
    plain, read_item, write_item = _form(arguments[0])
    refuse = _refusal("list")

    def read(data: Any) -> tuple[Any, ...]:
        if type(data) is not list:
            refuse(data)
        items: list[Any] = []
        try:
            for item in data:
                items.append(item if type(item) in plain else read_item(item))  # noqa: PERF401 - its length is the path
        except CodecError as error:
            raise error.below(f"[{len(items)}]") from None
        return tuple(items)

    return _Form(frozenset(), read, list if write_item is None else lambda items: [write_item(item) for item in items])


def _mapping_form(key: Any, value: Any) -> _Form:
    if key is not str:
        raise TypeError("of mappings, only Mapping[str, X] has a JSON form")
    plain, read_value, write_value = _form(value)
    refuse = _refusal("an object")

    def read(data: Any) -> dict[str, Any]:
        if type(data) is not dict:
            refuse(data)
        values = {}
        for name, item in data.items():
            try:
                values[name] = item if type(item) in plain else read_value(item)
            except CodecError as error:
                raise error.below(f".{name}") from None
        return values

    def write(values: Any) -> dict[str, Any]:
        return {name: item if write_value is None else write_value(item) for name, item in values.items()}

    return _Form(frozenset(), read, write)


def _union_form(kinds: tuple[Any, ...]) -> _Form:
    rest = tuple(kind for kind in kinds if kind is not NoneType)
    plain, read, write = _form(rest[0]) if len(rest) == 1 else _tagged_form(rest)
    if len(rest) == len(kinds):
        return _Form(plain, read, write)
    write_or_none = None if write is None else lambda value: None if value is None else write(value)
    return _Form(plain | {NoneType}, read, write_or_none)


def _tagged_form(kinds: tuple[Any, ...]) -> _Form:
    forms = {kind.__name__: _class_form(kind) for kind in kinds}
    refuse = _refusal(f"an object whose type is one of {', '.join(forms)}")

    def read(data: Any) -> Any:
        tag = data.get("type") if type(data) is dict else None
        return forms[tag].read(data) if type(tag) is str and tag in forms else refuse(data)

    def write(value: Any) -> Any:
        tag = type(value).__name__
        return {"type": tag, **to_wire(value)}

    return _Form(frozenset(), read, write)


def _class_form(kind: Any) -> _Form:
    hints = typing.get_type_hints(kind)
    fields = [_field(field, _form(hints[field.name])) for field in dataclasses.fields(kind)]
    return _Form(frozenset(), _class_reader(kind, fields), _class_writer(fields))


def _field(field: dataclasses.Field[Any], form: _Form) -> _Field:
    if field.default is not dataclasses.MISSING:
        return _Field(field.name, form, field.default)
    if field.default_factory is not dataclasses.MISSING:
        return _Field(field.name, form, field.default_factory())
    return _Field(field.name, form, None if NoneType in form.plain else _NOTHING, owed=True)


def _class_reader(kind: Any, fields: list[_Field]) -> Callable[[Any], Any]:
    forms = {field.name: (field.form.plain, field.form.read) for field in fields}
    owed = {field.name: field.omitted for field in fields if field.owed}
    refuse = _refusal(f"an object ({kind.__name__})")

    def read(data: Any) -> Any:
        if type(data) is not dict:
            refuse(data)
        arguments = owed.copy()
        for key, value in data.items():
            if key in forms:
                plain, read_field = forms[key]
                try:
                    arguments[key] = value if type(value) in plain else read_field(value)
                except CodecError as error:
                    raise error.below(f".{key}") from None
        for key in owed:
            if arguments[key] is _NOTHING:
                raise CodecError(f"{key} is missing")
        return kind(**arguments)

    return read


def _class_writer(fields: list[_Field]) -> Callable[[Any], Any]:
    plan = [(field.name, field.omitted, field.form.write) for field in fields]

    def write(value: Any) -> dict[str, Any]:
        data = {}
        for name, omitted, write_field in plan:
            item = getattr(value, name)
            if item is not omitted and item != omitted:
                data[name] = item if write_field is None else write_field(item)
        return data

    return write
