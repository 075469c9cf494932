"""Reads the configuration as layers, of which a later one overrides earlier ones key by key.

    defaults < NODE_NAME of a pod < gpuwarden.toml < conf.d/*.toml beside it, by name < environment < command line

A layer is a tree of plain TOML values, with a name for reports of faults. Tables are merged, other values replaced.
This module only checks that files are readable and valid TOML.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpuwarden.base.files import read_regular
from gpuwarden.base.paths import CONFIG_FILE, RUN_DIR_VARIABLE
from gpuwarden.base.printable import clean
from gpuwarden.config.lines import hint, lines_of

Tree = dict[str, Any]
KeyPath = tuple[str, ...]
Origins = dict[KeyPath, str]
"""The layer that set each key or table, the last one winning. Keys that are missing have their default."""

_PREFIX = "GPUWARDEN_"
_NO_KEYS = re.compile(
    r"TEST_HOST|(SERVICE|PORT)(_[A-Z0-9_]+)?|SIGNAL|JOB|STALL|AFTER_SAVE|REQUEUE_EXIT|CHECKPOINT_DIR|VERB|REASON"
)
"""Variables that are not keys: the tests' switch, Kubernetes' variables for a service named gpuwarden, and those of
jobs and of the site's programs, both of which may call gpuwarden."""

_SERVICE, _NODE = "KUBERNETES_SERVICE_HOST", "NODE_NAME"
"""Set by kubelet in every pod; set by a manifest from spec.nodeName, since a pod's hostname is the pod's name."""

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_FILE_MAX = 1 << 20  # bytes
_DEPTH_MAX = 8  # nested tables; deeper ones count as one value


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of the configuration. `key` is empty for a fault of the whole file, `line` is 0 if unknown."""

    source: str
    key: str
    message: str
    line: int = 0

    def __str__(self) -> str:
        text = ": ".join(clean(part) for part in (self.source, self.key, self.message) if part)
        return f"{text} (at line {self.line})" if self.line else text


def with_line(fault: Fault, path: KeyPath) -> Fault:
    """Return the fault with the line of its key, if its source is a readable file."""
    if not fault.source.startswith("/"):
        return fault
    try:
        text = read_regular(Path(fault.source), _FILE_MAX).decode("utf-8-sig", "replace")
    except OSError:
        return fault
    lines = lines_of(text).get(path)
    return replace(fault, line=lines[0]) if lines else fault


def dotted(path: KeyPath) -> str:
    """Format a key as in TOML: `plugins."my check".command`."""
    return ".".join(part if _BARE.fullmatch(part) else f'"{part}"' for part in path)


@dataclass(frozen=True, slots=True)
class Layer:
    origin: str
    tree: Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The sources of the configuration.

    `file` is None for no files. `required`: the file was named explicitly and must exist. `defaults` are below the
    files, `overrides` above the environment. `files`: the contents of the files, if already read.
    """

    file: Path | None = CONFIG_FILE
    required: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    defaults: tuple[Layer, ...] = ()
    overrides: tuple[Layer, ...] = ()
    files: tuple[Layer, ...] | None = None

    def with_files_read(self) -> Sources:
        """Return the sources with the files read. Files with a fault are read again later, and then reported."""
        read = list(_files(self.file, required=self.required)) if self.file else []
        layers = tuple(each for each in read if isinstance(each, Layer))
        return replace(self, files=layers) if len(layers) == len(read) else self

    def read(self) -> tuple[list[Layer], list[Fault]]:
        """Read all layers, in order, and the faults of unreadable ones."""
        files: list[Layer | Fault] = list(self.files or ())
        if self.files is None and self.file is not None:
            files = list(_files(self.file, required=self.required))
        layers = [file for file in files if isinstance(file, Layer)]
        faults = [file for file in files if isinstance(file, Fault)]
        return [
            *self.defaults,
            *_pod(self.environment),
            *layers,
            *environment_layers(self.environment),
            *self.overrides,
        ], faults


def merge(layers: Iterable[Layer]) -> tuple[Tree, Origins]:
    tree: Tree = {}
    origins: Origins = {}
    for layer in layers:
        _merge_into(tree, layer.tree, (), layer.origin, origins)
    return tree, origins


def _merge_into(tree: Tree, more: Tree, path: KeyPath, origin: str, origins: Origins) -> None:
    for key, value in more.items():
        here = (*path, key)
        origins[here] = origin
        if not isinstance(value, dict) or len(here) >= _DEPTH_MAX:
            tree[key] = value
            continue
        if not isinstance(tree.get(key), dict):
            tree[key] = {}
        _merge_into(tree[key], value, here, origin, origins)


def in_pod(environment: Mapping[str, str] = os.environ) -> bool:
    return _SERVICE in environment


def _pod(environment: Mapping[str, str]) -> Iterator[Layer]:
    if in_pod(environment) and (name := environment.get(_NODE)):
        yield Layer(_NODE, {"node": name})


def environment_layers(environment: Mapping[str, str]) -> Iterator[Layer]:
    """Yields a layer for each variable such as `GPUWARDEN_COLLECTORS__NVML__INTERVAL=1s`. Invalid TOML is text."""
    for name, text in sorted(environment.items()):
        bare = name.removeprefix(_PREFIX)
        if name == RUN_DIR_VARIABLE:
            yield Layer(name, {"run": {"dir": text}})
        elif bare != name and not _NO_KEYS.fullmatch(bare):
            yield Layer(name, nested(bare.lower().split("__"), _value(text)))


def nested(path: Iterable[str], value: object) -> Tree:
    """Build `{"a": {"b": value}}` for the path a, b."""
    first, *rest = path
    return {first: nested(rest, value) if rest else value}


def _value(text: str) -> object:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return parsed["value"] if parsed.keys() == {"value"} else text


def _files(file: Path, *, required: bool) -> Iterator[Layer | Fault]:
    yield from _file(file, required=required)
    folder = file.parent / "conf.d"
    try:
        drop_ins = sorted(f for f in folder.iterdir() if f.suffix == ".toml" and not f.name.startswith("."))
    except FileNotFoundError:
        return
    except OSError as error:
        yield Fault(str(folder), "", f"cannot be read: {error.strerror}")
        return
    for drop_in in drop_ins:
        yield from _file(drop_in, required=True)


def _file(file: Path, *, required: bool) -> Iterator[Layer | Fault]:
    try:
        data = read_regular(file, _FILE_MAX + 1)
    except FileNotFoundError:
        if required:
            yield Fault(str(file), "", "does not exist")
    except OSError as error:
        yield Fault(str(file), "", f"cannot be read: {error.strerror}")
    else:
        yield _parsed(file, data)


def _parsed(file: Path, data: bytes) -> Layer | Fault:
    if len(data) > _FILE_MAX:
        return Fault(str(file), "", f"expected at most {_FILE_MAX} bytes, found more: is this a configuration file?")
    try:
        return Layer(str(file), tomllib.loads(data.decode("utf-8-sig")))  # editors of Windows begin a file with a mark
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return Fault(str(file), "", f"expected UTF-8 text, found byte 0x{data[error.start]:02x} (at line {line})")
    except ValueError as error:  # TOMLDecodeError, or an integer of thousands of digits
        if better := hint(data.decode("utf-8-sig"), str(error)):
            return Fault(str(file), "", better)
        end = f"at line {len(data.splitlines())}, the end of the file"
        return Fault(str(file), "", f"is not valid TOML: {error}".replace("at end of document", end))
    except RecursionError:
        return Fault(str(file), "", "is not valid TOML: nested too deeply")
