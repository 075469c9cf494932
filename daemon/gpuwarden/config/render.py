"""Renders the configuration as TOML that can be read back, with the origin of each value as a comment."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any

from gpuwarden.base.durations import format_duration
from gpuwarden.config.model import PARSERS, Config
from gpuwarden.config.sources import KeyPath
from gpuwarden_collectors.options import keys


def as_toml(config: Config, origins: Mapping[KeyPath, str]) -> str:
    return "\n".join(_table(config, (), origins)) + "\n"


def _table(table: Any, path: KeyPath, origins: Mapping[KeyPath, str]) -> Iterator[str]:
    """Yield the table's own keys first, as TOML requires, then its subtables."""
    tables: dict[KeyPath, Any] = {}
    lines: list[str] = []
    for name, value in _items(table):
        here = (*path, name)
        if isinstance(value, Mapping) or (is_dataclass(value) and not isinstance(value, tuple(PARSERS))):
            tables[here] = value
        else:
            lines.append(_line(name, value, origins.get(here, "default")))
    if path and lines:
        yield from ("", f"[{'.'.join(map(_key, path))}]")
    yield from lines
    for here, value in tables.items():
        yield from _table(value, here, origins)


def _items(table: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(table, Mapping):
        return table.items()
    return ((key.name, getattr(table, key.name)) for key in keys(table))


def _key(name: str) -> str:
    return name if name.isidentifier() and name.isascii() else _quoted(name)


def _line(name: str, value: Any, origin: str) -> str:
    setting = f"# {name} is not set" if value is None else f"{name} = {literal(value)}"
    return f"{setting:<40}  # {_quoted(origin)[1:-1]}"


def literal(value: Any) -> str:
    """Render a value in TOML."""
    if isinstance(value, bool | int):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(literal, value))}]"
    return _quoted(format_duration(value) if isinstance(value, float) else str(value))


def _quoted(text: str) -> str:
    """Quote a text. JSON's escapes equal TOML's, except for one character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
