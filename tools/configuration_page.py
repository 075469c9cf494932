"""docs/reference/configuration.md from the classes of the configuration: every key with its type, default, bounds and meaning."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import Field, is_dataclass
from enum import StrEnum
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from gpuwarden.base.addresses import Address
from gpuwarden.config.bounds import allowed
from gpuwarden.config.model import PARSERS, Config
from gpuwarden.config.render import literal
from gpuwarden_collectors.options import bounds, is_searched, is_text_list, keys

HEAD = """\
# Configuration

Reference of every key, for administrators. The shortest file `/etc/gpuwarden/gpuwarden.toml` that does something:

```toml
mode = "enforce"
[slurm]
enabled = true
```

```
gpuwarden config check      # every fault at once
gpuwarden config show       # what is in force, and the source of each value
gpuwarden reload            # puts in force what needs no restart
```

Files `conf.d/*.toml` beside it are read after it, by name, then variables of the environment; a later source overrides an earlier one key by key. As a variable `collectors.nvml.interval` is `GPUWARDEN_COLLECTORS__NVML__INTERVAL`.
A *duration* is a text such as `"500ms"`, `"5s"`, `"10m"`, `"2h"` or `"28d"`; a *secret* is the absolute path of a file or the name of a systemd
credential, never the secret itself. A table with a name in capitals may be there several times, each with a name of your own.

"""
OWN_NAMES = {"checks": "CODE", "xids": "N", "sxids": "N"}
KINDS = {
    bool: "true or false", int: "whole number", float: "duration", str: "text", Path: "absolute path", Address: "`host:port`",
}  # fmt: skip
NODE = "the name of this host"


def tables(cls: type, path: str = "") -> Iterator[tuple[str, type]]:
    """Yield the class and all tables in it: the path and the class."""
    yield path, cls
    hints = get_type_hints(cls)
    for key in keys(cls):
        kind, here = hints[key.name], f"{path}.{key.name}" if path else key.name
        if get_origin(kind) is Mapping:
            yield from tables(get_args(kind)[1], f"{here}.{OWN_NAMES.get(key.name, 'NAME')}")
        elif is_table(kind):
            yield from tables(kind, here)


def is_table(kind: Any) -> bool:
    """Return True if the type is a table, or a mapping of tables that a site names."""
    return get_origin(kind) is Mapping or (is_dataclass(kind) and kind not in PARSERS)


def configuration(made: str, table: Any) -> str:
    """`made`: the note that the page is generated; `table` writes rows below their head."""
    by_class: dict[type, list[str]] = {}
    for path, cls in tables(Config):
        by_class.setdefault(cls, []).append(path)
    sections = [HEAD + made]
    for cls, paths in by_class.items():
        if rows := list(_rows(cls)):
            heading = ", ".join(f"`[{path}]`" for path in paths if path) or "Outside of any table"
            about = f"{inspect.cleandoc(cls.__doc__ or '')}\n\n" if paths != [""] else ""
            sections.append(f"\n## {heading}\n\n{about}{table(('key', 'type', 'default', 'bounds', 'meaning'), rows)}")
    return "".join(sections)


def _rows(cls: type) -> Iterator[tuple[str, ...]]:
    hints, default = get_type_hints(cls), cls()
    for key in keys(cls):
        kind = hints[key.name]
        if not is_table(kind):
            value = NODE if (cls, key.name) == (Config, "node") else _default(getattr(default, key.name))
            form = "text, or list of text" if is_searched(key) or is_text_list(key) else _kind(kind)
            yield f"`{key.name}`", form, value, _bounds(key, kind), meanings(cls)[key.name]


def _kind(kind: Any) -> str:
    if get_origin(kind) is tuple:
        return f"list of {_kind(get_args(kind)[0])}"
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(f"`{choice}`" for choice in get_args(kind) if choice)
    if isinstance(kind, UnionType):
        return _kind(next(argument for argument in get_args(kind) if argument is not NoneType))
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return "one of " + ", ".join(f"`{choice.value}`" for choice in kind)
    return KINDS.get(kind, "secret")


def _default(value: Any) -> str:
    return "not set" if value is None else f"`{literal(value)}`"


def _bounds(key: Field[Any], kind: Any) -> str:
    limits = bounds(key)
    if limits is None:
        return ""
    return allowed(limits, float if float in (kind, *get_args(kind)) else int) + (
        f": {limits.why}" if limits.why else ""
    )


@cache
def meanings(cls: type) -> Mapping[str, str]:
    """Return the docstring of each field, inherited fields included."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        body = _class_body(base)
        for field, below in pairwise(body):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    texts[name] = re.sub(r"\s+", " ", text).strip()
    return texts


def _class_body(cls: type) -> list[ast.stmt]:
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(node, ast.ClassDef)
    return node.body
