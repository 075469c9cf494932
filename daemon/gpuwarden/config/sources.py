"""Where configuration comes from, as layers that a later one overrides key by key.

    defaults < NODE_NAME of a pod < gpuwarden.toml < conf.d/*.toml beside it, by name < environment < command line

A layer is a tree of plain TOML values and the name by which a fault in it is reported. Tables merge, everything else is
replaced. Nothing is judged here but whether a file can be read and is TOML.
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
"""Who gave a key, the last word winning; tables too. What is not in it stands at its default."""

_PREFIX = "GPUWARDEN_"
_NO_KEYS = re.compile(
    r"TEST_HOST|(SERVICE|PORT)(_[A-Z0-9_]+)?|SIGNAL|JOB|STALL|AFTER_SAVE|REQUEUE_EXIT|CHECKPOINT_DIR|VERB|REASON"
)
"""Variables that are no keys: the switch of the tests, what Kubernetes sets for a service named gpuwarden, what a job declares, and what a
program of the site's is given; either may call gpuwarden."""

_SERVICE, _NODE = "KUBERNETES_SERVICE_HOST", "NODE_NAME"
"""What the kubelet sets in every pod, and what a manifest sets from spec.nodeName: the kernel calls a pod by the pod's name."""

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_FILE_MAX = 1 << 20  # bytes
_DEPTH_MAX = 8  # tables within tables; below that a tree is one value


@dataclass(frozen=True, slots=True)
class Fault:
    """Something in the configuration that is not as it must be. `key` is empty when the fault is the file's, `line` 0 if it is not known."""

    source: str
    key: str
    message: str
    line: int = 0

    def __str__(self) -> str:
        text = ": ".join(clean(part) for part in (self.source, self.key, self.message) if part)
        return f"{text} (at line {self.line})" if self.line else text


def with_line(fault: Fault, path: KeyPath) -> Fault:
    """The same, with the line of the key if its source is a file that can be read."""
    if not fault.source.startswith("/"):
        return fault
    try:
        text = read_regular(Path(fault.source), _FILE_MAX).decode("utf-8", "replace")
    except OSError:
        return fault
    lines = lines_of(text).get(path)
    return replace(fault, line=lines[0]) if lines else fault


def dotted(path: KeyPath) -> str:
    """The key as it is written in TOML: `plugins."my check".command`."""
    return ".".join(part if _BARE.fullmatch(part) else f'"{part}"' for part in path)


@dataclass(frozen=True, slots=True)
class Layer:
    origin: str
    tree: Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The sources of the configuration.

    `file` is None for no files. `required`: somebody named the file, so that it must be there. `defaults` are below the files, `overrides`
    above the environment. `files`: the contents of the files, if they were read already.
    """

    file: Path | None = CONFIG_FILE
    required: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    defaults: tuple[Layer, ...] = ()
    overrides: tuple[Layer, ...] = ()
    files: tuple[Layer, ...] | None = None

    def with_files_read(self) -> Sources:
        """The same, with the files read; those with a fault are left to be read again, and reported."""
        read = list(_files(self.file, required=self.required)) if self.file else []
        layers = tuple(each for each in read if isinstance(each, Layer))
        return replace(self, files=layers) if len(layers) == len(read) else self

    def read(self) -> tuple[list[Layer], list[Fault]]:
        """Read all layers, in order, and the faults of what could not be read."""
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
    """Yields a layer for each variable such as `GPUWARDEN_COLLECTORS__NVML__INTERVAL=1s`. A value that is no TOML is taken as text."""
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
        return Layer(str(file), tomllib.loads(data.decode()))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return Fault(str(file), "", f"expected UTF-8 text, found byte 0x{data[error.start]:02x} (at line {line})")
    except ValueError as error:  # TOMLDecodeError, or an integer of thousands of digits
        if better := hint(data.decode(), str(error)):
            return Fault(str(file), "", better)
        end = f"at line {len(data.splitlines())}, the end of the file"
        return Fault(str(file), "", f"is not valid TOML: {error}".replace("at end of document", end))
    except RecursionError:
        return Fault(str(file), "", "is not valid TOML: nested too deeply")
