"""Finds the right table for a misplaced key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

from gpuwarden.config.sources import KeyPath, dotted
from gpuwarden_collectors.options import keys

_NAMED_MOST = 4
"""Most tables named; a key of more tables, such as `enabled`, is ambiguous."""


def placement(path: KeyPath, cls: type) -> str:
    """Return where to write the unknown key `path`; "" if no table, or too many tables, have such a key."""
    key = path[-1]
    places = [table for table, names in _tables(cls, ()) if key in names and table != path[:-1]]
    if not places:
        return _named(path, cls)
    if () in places:
        return f"unknown key here: {key} belongs to no table; write it at the top of the file, above the first [table]"
    if len(places) > _NAMED_MOST:
        return ""
    tables = ", ".join(f"[{dotted(table)}]" for table in places)
    return f"unknown key here: write {key} below the line of its table: {tables}"


def _named(path: KeyPath, cls: type) -> str:
    """Return advice for a name in place of the kind, as in `[notify.pager]`."""
    kinds: Any = cls
    for name in path[:-1]:
        kinds = get_type_hints(kinds).get(name) if is_dataclass(kinds) else None
    if not is_dataclass(kinds) or len(path) < 2:
        return ""
    hints = get_type_hints(kinds)
    if any(get_origin(kind) is not Mapping for kind in hints.values()):
        return ""
    wanted = " or ".join(f"[{dotted((*path[:-1], kind, path[-1]))}]" for kind in hints)
    return f"no kind of this name; write {wanted}"


def _tables(cls: type, path: KeyPath) -> Iterator[tuple[KeyPath, set[str]]]:
    """Yields each table with the names of its plain keys. Shows a table with the site's own keys as NAME."""
    hints = get_type_hints(cls)
    plain: set[str] = set()
    for key in keys(cls):
        kind = hints[key.name]
        here = (*path, key.name)
        if get_origin(kind) is Mapping:
            below = get_args(kind)[1]
            if is_dataclass(below) and isinstance(below, type):
                yield from _tables(below, (*here, "NAME"))
        elif isinstance(kind, type) and is_dataclass(kind) and _is_table(kind):
            yield from _tables(kind, here)
        else:
            plain.add(key.name)
    yield path, plain


def _is_table(kind: type) -> bool:
    """True unless the class is written as text."""
    return not hasattr(kind, "parse")
