"""Converts a tree of plain values to frozen dataclasses, and reports all faults at once, each with its key.

Ambiguous values are not converted: "8" is not a number and 5 is not a duration. Every `float` field is a duration,
stored in seconds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

from cattrs import Converter
from cattrs.errors import (
    AttributeValidationNote,
    ClassValidationError,
    ForbiddenExtraKeysError,
    IterableValidationError,
)
from cattrs.gen import make_dict_structure_fn, override

from gpuwarden.base.durations import EXPECTED, parse_duration
from gpuwarden.config.sources import KeyPath, Tree
from gpuwarden_collectors.options import SEPARATOR, is_searched, is_text_list, keys

Parsers = Mapping[type, tuple[str, Callable[[str], Any]]]
Keyed = tuple[KeyPath, str]
T = TypeVar("T")

UNKNOWN_KEY = "unknown key"
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", dict: "a table", list: "a list"}


def structure(tree: Tree, cls: type[T], *, parsers: Parsers) -> tuple[T, list[Keyed]]:
    """Return the value and the faults. Keys with a fault have their default.

    `parsers`: for each class that is written as text, the expected form, and a parser that raises ValueError.
    """
    converter = _converter(parsers)
    try:
        return converter.structure(tree, cls), []
    except ClassValidationError as error:
        faults = list(_faults(error, ()))
        return converter.structure(_without(tree, {key for key, _ in faults}), cls), faults


def _converter(parsers: Parsers) -> Converter:
    converter = Converter(detailed_validation=True, forbid_extra_keys=True)
    converter.register_structure_hook(bool, _plain)
    converter.register_structure_hook(int, _plain)
    converter.register_structure_hook(str, _text)
    converter.register_structure_hook(Path, _path)
    converter.register_structure_hook_func(_is_literal, _choice)
    converter.register_structure_hook_factory(_is_mapping, lambda kind: _tables(converter, get_args(kind)[1]))
    converter.register_structure_hook_factory(_is_tuple, lambda kind: _list_of(converter, get_args(kind)[0]))
    converter.register_structure_hook_factory(
        lambda kind: dataclasses.is_dataclass(kind) and kind not in parsers, lambda cls: _table(converter, cls)
    )
    for kind, (expected, parse) in {float: (EXPECTED, parse_duration), **parsers}.items():
        converter.register_structure_hook(kind, _from_text(expected, parse))
    return converter


def _table(converter: Converter, cls: type) -> Callable[[Any, Any], Any]:
    names = {key.name for key in keys(cls)}
    omitted: Any = {each.name: override(omit=True) for each in dataclasses.fields(cls) if each.name not in names}
    paths: Any = {key.name: override(struct_hook=_searched) for key in keys(cls) if is_searched(key)}
    lists: Any = {key.name: override(struct_hook=_text_list) for key in keys(cls) if is_text_list(key)}
    fill: Any = make_dict_structure_fn(
        cls, converter, _cattrs_forbid_extra_keys=True, _cattrs_use_linecache=False, **omitted, **paths, **lists
    )

    def table(value: Any, kind: Any) -> Any:
        if not isinstance(value, dict):
            raise _unexpected("a table", value)
        return fill(value, kind)

    return table


def _tables(converter: Converter, cls: type) -> Callable[[Any, Any], Any]:
    """Convert a table with the site's own keys, each with a table of the class."""

    def tables(value: Any, _: Any) -> Any:
        if not isinstance(value, dict):
            raise _unexpected("a table", value)
        filled: dict[str, Any] = {}
        errors: list[Exception] = []
        for name, item in value.items():
            try:
                filled[name] = converter.structure(item, cls)
            except Exception as error:  # noqa: BLE001 - whatever a hook raises is reported with its key
                error.add_note(AttributeValidationNote(f"table {name}", name, cls))
                errors.append(error)
        if errors:
            raise ClassValidationError("tables", errors, dict)
        return filled

    return tables


def _list_of(converter: Converter, item: Any) -> Callable[[Any, Any], Any]:
    """Convert a list of any length; a text is not a list."""

    def items(value: Any, _: Any) -> Any:
        if not isinstance(value, list):
            raise _unexpected("a list", value, ": put it in brackets")
        kind: Any = list[item]
        return tuple(converter.structure(value, kind))

    return items


def _is_tuple(kind: Any) -> bool:
    return get_origin(kind) is tuple


def _is_mapping(kind: Any) -> bool:
    return get_origin(kind) is Mapping


def _is_literal(kind: Any) -> bool:
    return get_origin(kind) is Literal


def _plain(value: Any, kind: type[T]) -> T:
    if type(value) is kind:
        return value
    scalar = kind is str and not isinstance(value, dict | list)
    raise _unexpected(_KINDS[kind], value, ": put it in quotes" if scalar else "")


def _text(value: Any, kind: Any) -> Any:
    if issubclass(kind, StrEnum):  # cattrs would use the hook of str
        return kind(_one_of([word.value for word in kind], value))
    return _plain(value, kind)


def _from_text(expected: str, parse: Callable[[str], Any]) -> Callable[[Any, Any], Any]:
    def parsed(value: Any, _: Any) -> Any:
        if not isinstance(value, str):
            raise _unexpected(expected, value, ": write it in quotes, as shown")
        try:
            return parse(value)
        except ValueError:
            raise _unexpected(expected, value) from None

    return parsed


def _path(value: Any, _: Any) -> Path:
    text = _plain(value, str)
    if not text.startswith("/") or "\0" in text:
        raise _unexpected("an absolute path", value)
    return Path(text)


def _searched(value: Any, _: Any) -> str:
    """Join paths that are tried in order with `:`."""
    if not isinstance(value, list):
        return _plain(value, str)
    for index, path in enumerate(value):
        if not isinstance(path, str) or not path or SEPARATOR in path or "\0" in path:
            shown = repr(path)[:60] if isinstance(path, str) else f"{path} ({_KINDS.get(type(path), 'a date or time')})"
            raise ValueError(f"item {index}: expected a path without ':', found {shown}")
    return SEPARATOR.join(value)


def _text_list(value: Any, _: Any) -> tuple[str, ...]:
    items = value if isinstance(value, list) else [value]
    return tuple(_plain(item, str) for item in items)


def _choice(value: Any, kind: Any) -> Any:
    return _one_of(get_args(kind), value)


def _one_of(choices: Sequence[Any], value: Any) -> Any:
    if isinstance(value, str) and value in choices:
        return value
    raise _unexpected(f"one of {', '.join(filter(None, choices))}", value, near(str(value), choices))


def _unexpected(expected: str, actual: object, hint: str = "") -> ValueError:
    if isinstance(actual, dict | list):
        shown = _KINDS[type(actual)]
    elif isinstance(actual, str):
        shown = repr(actual if len(actual) <= 60 else f"{actual[:60]}…")
    else:
        shown = f"{str(actual).lower()[:60]} ({_KINDS.get(type(actual), 'a date or time')})"
    return ValueError(f"expected {expected}, found {shown}{hint}")


def near(word: str, candidates: Iterable[str]) -> str:
    """Return a hint with a similar word, to be appended, or ""."""
    names = {name.lower(): name for name in candidates}
    matches = get_close_matches(word.lower(), list(names), n=1)
    return f"; did you mean {names[matches[0]]!r}?" if matches else ""


def _faults(error: BaseException, path: KeyPath) -> Iterator[Keyed]:
    if isinstance(error, ClassValidationError):
        fields, others = error.group_exceptions()
        for inner, note in fields:
            yield from _faults(inner, (*path, note.name))
        for inner in others:
            yield from _faults(inner, path)
    elif isinstance(error, IterableValidationError):
        items, _ = error.group_exceptions()
        for inner, item in items:
            for below, message in _faults(inner, ()):
                yield path, f"item {item.index}: {': '.join((*below, message))}"
    elif isinstance(error, ForbiddenExtraKeysError):
        names = [key.name for key in keys(error.cl)]
        for key in sorted(error.extra_fields):
            yield (*path, key), UNKNOWN_KEY + (near(key, names) or f"; known here are {', '.join(names)}")
    else:
        yield path, str(error)


def _without(tree: Tree, faulty: set[KeyPath], path: KeyPath = ()) -> Tree:
    return {
        key: _without(value, faulty, (*path, key)) if isinstance(value, dict) else value
        for key, value in tree.items()
        if (*path, key) not in faulty
    }
