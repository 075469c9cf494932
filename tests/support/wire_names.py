"""Every name that others read or write: keys of documents, ledger, traces and configuration, metrics, verbs, values.

`names()` extracts them from the gpuwarden that is imported, by what the names belong to and not by module: code may move. As a program
it prints `tests/data/wire-names.json`:

    PYTHONPATH=tests:job .venv/bin/python tests/support/wire_names.py > tests/data/wire-names.json
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib
import inspect
import json
import pkgutil
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Any

PACKAGES = ("gpuwarden", "gpuwarden_collectors", "gpuwarden_job")
INTERNAL = (
    "Fate", "Login", "LastWord", "Marking", "NvmlProblem", "Out", "Presence", "Requeueing", "Role", "Said", "Signalling",
)  # fmt: skip
"""Enumerations that nothing outside of their process sees."""
OUTWARD = (
    "gpuwarden.control", "gpuwarden.features.active_test", "gpuwarden.features.evacuation", "gpuwarden.features.job_stall",
    "gpuwarden.features.slurm", "gpuwarden.health", "gpuwarden.notify", "gpuwarden.policy", "gpuwarden.publish", "gpuwarden.trace",
    "gpuwarden_job",
)  # fmt: skip
"""Packages whose keys are in documents, notifications, the ledger or files of jobs; the keys of others stay inside of the daemon."""
OPTIONAL = ("torch", "grpclib", "h2", "lightkube")
"""Libraries without which some modules cannot be imported; no name of the wire is in those alone."""


def names() -> dict[str, Any]:
    """The names by section; each section is a mapping of text to texts or to a list of texts, all sorted."""
    return {
        "configuration": dict(sorted(_keys(_class("Config", "mode")))),
        "documents": {name: sorted(_paths(document)) for name, document in _documents().items()},
        "enumerations": dict(sorted(_enumerations())),
        "facts": dict(sorted(_wire_classes())),
        "keys": dict(_written()),
        "metrics": dict(sorted(_metrics())),
        "verbs": dict(sorted(_verbs())),
    }


@cache
def modules() -> tuple[ModuleType, ...]:
    return tuple(module for package in PACKAGES for module in _modules(package))


def _modules(package: str) -> Iterator[ModuleType]:
    root = importlib.import_module(package)
    for info in pkgutil.walk_packages(root.__path__, f"{package}."):
        if info.name.endswith("__main__"):
            continue
        try:
            yield importlib.import_module(info.name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in OPTIONAL:
                raise


def _module_with(*attributes: str) -> ModuleType:
    """The module that defines all of these functions, classes or tables."""
    owners = [module for module in modules() if all(_defines(module, name) for name in attributes)]
    assert len(owners) == 1, f"{attributes} are in {[module.__name__ for module in owners]}"
    return owners[0]


def _defines(module: ModuleType, name: str) -> bool:
    value = vars(module).get(name)
    return value is not None and getattr(value, "__module__", module.__name__) == module.__name__


def _class(name: str, field: str) -> Any:
    return next(
        value
        for module in modules()
        if dataclasses.is_dataclass(value := vars(module).get(name))
        and field in {f.name for f in dataclasses.fields(value)}
    )


# --- configuration


def _keys(cls: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield each key with the values that it takes. `<name>` represents a name that the site chooses."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        if field.compare and not field.name.startswith("_"):
            yield from _key(hints[field.name], f"{path}.{field.name}".removeprefix("."))


def _key(hint: Any, path: str) -> Iterator[tuple[str, str]]:
    if typing.get_origin(hint) is Mapping and dataclasses.is_dataclass(typing.get_args(hint)[1]):
        yield from _keys(typing.get_args(hint)[1], f"{path}.<name>")
    elif dataclasses.is_dataclass(hint) and getattr(hint, "__name__", "") not in ("Address", "Secret", "SecretFile"):
        yield from _keys(hint, path)
    else:
        yield path, _accepted(hint)


def _accepted(hint: Any) -> str:
    """The accepted values, or the type of what is written; no name of a class, which may change."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return "|".join(sorted(map(str, arguments)))
    if origin in (typing.Union, UnionType):
        return "|".join(sorted({_accepted(argument) for argument in arguments if argument is not NoneType}))
    if origin is tuple:
        return f"list of {_accepted(arguments[0])}"
    if origin is Mapping:
        return f"table of {_accepted(arguments[1])}"
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return "|".join(sorted(hint))
    return {bool: "bool", int: "int", float: "duration"}.get(hint, "text")


# --- what goes through the codec: traces, messages of workers


def _wire_classes() -> Iterator[tuple[str, list[str]]]:
    """Fields of every class that a trace can hold. Names of classes are in it where they are tags of a union."""
    records = next(m for m in modules() if "FACTS" in vars(m) and "Record" in vars(m))
    host_event = next(vars(m)["HostEvent"] for m in modules() if "HostEvent" in vars(m))
    yield "HostEvent (tags)", sorted(cls.__name__ for cls in typing.get_args(host_event))
    for collector, hint in records.FACTS.items():
        yield from _fields(hint, collector)
    for event in typing.get_args(host_event):
        yield from _fields(event, event.__name__)
    yield from _fields(_class("Rules", "checks"), "rules")


def _fields(hint: Any, path: str) -> Iterator[tuple[str, list[str]]]:
    for cls in _dataclasses_in(hint):
        hints = typing.get_type_hints(cls)
        yield path, sorted(hints[field.name] and field.name for field in dataclasses.fields(cls))
        for field in dataclasses.fields(cls):
            yield from _fields(hints[field.name], f"{path}.{field.name}")


def _dataclasses_in(hint: Any) -> list[Any]:
    if dataclasses.is_dataclass(hint):
        return [hint]
    return [cls for argument in typing.get_args(hint) if argument is not Ellipsis for cls in _dataclasses_in(argument)]


# --- values


def _enumerations() -> Iterator[tuple[str, list[str]]]:
    """Values of each enumeration, under the name that its class has in the checkout: a class may be renamed, values may not."""
    for module in modules():
        for value in vars(module).values():
            own = inspect.isclass(value) and issubclass(value, StrEnum) and value.__module__ == module.__name__
            if own and value.__name__ not in INTERNAL:
                yield f"{value.__name__}: {min(value)}", sorted(value)
    yield "conditions", sorted(next(vars(m)["CONDITIONS"] for m in modules() if "CONDITIONS" in vars(m)))


def _metrics() -> Iterator[tuple[str, list[str]]]:
    tables = next(m for m in modules() if "METRICS" in vars(m) and "FIELDS" in vars(m))
    for metric in tables.METRICS:
        yield metric.name, list(metric.labels)
    for field in tables.FIELDS:
        yield tables.PREFIX + field.name, []


# --- verbs


def _verbs() -> Iterator[tuple[str, list[str]]]:
    from gpuwarden.cli.main import VERBS, parser_of

    for verb in VERBS:
        yield from _arguments(verb, parser_of(verb))


def _arguments(verb: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, list[str]]]:
    texts = set()
    for action in parser._actions:
        texts |= set(action.option_strings or ([f"<{action.dest}>"] if not action.choices else []))
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from _arguments(f"{verb} {name}", below)
        elif action.choices is not None:
            prefix = action.option_strings[0] if action.option_strings else ""
            texts |= {f"{prefix} {choice}".strip() for choice in action.choices}
    yield verb, sorted(texts - {"-h"})


# --- documents


def _documents() -> dict[str, Any]:
    """Return a document of each kind that a snapshot gives, of a node on which everything is on."""
    from support.snapshots import UPTIME, at
    from support.whole_snapshots import everything

    status = _module_with("heartbeat", "status", "findings", "event")
    verdict = next(m for m in modules() if "verdict_text" in vars(m))
    notice = next(m for m in modules() if "notice_document" in vars(m) and "source_document" in vars(m))
    event, key = _class("Event", "boot_id"), _class("Key", "subject")
    snapshot, now = everything(), at(UPTIME)
    raised_event = event(kind="raised", at=now, boot_id="b", key=key.parse("xid.79@node"), data={})
    messages = next(m for m in modules() if m.__name__ == "gpuwarden.notify.messages")
    sender: Any = next(filter(_has_fields("node", "mode", "boot_id", "runbooks"), vars(messages).values()))
    _, message = messages.message(raised_event, sender(node="n", mode="observe", boot_id="b"))
    return {
        "heartbeat": status.heartbeat(snapshot, now)[1],
        "status": status.status(snapshot, now),
        "gpus": status.gpus(snapshot, now),
        "findings": status.findings(snapshot),
        "events": status.events(snapshot, [raised_event]),
        "notice": notice.document(snapshot),
        "verdict": dict(line.split("=", 1) for line in verdict.verdict_text(snapshot, now).splitlines()),
        "notification": json.loads(message.body),
    }


def _has_fields(*names: str) -> Callable[[Any], bool]:
    return lambda value: (
        dataclasses.is_dataclass(value) and {field.name for field in dataclasses.fields(value)} == set(names)
    )


def _paths(value: Any, path: str = "") -> set[str]:
    if isinstance(value, Mapping):
        below = {f"{path}.{name}".removeprefix("."): item for name, item in value.items()}
        return {*below, *(inner_path for here, item in below.items() for inner_path in _paths(item, here))}
    if isinstance(value, list | tuple):
        return {inner_path for below in value for inner_path in _paths(below, f"{path}[]")}
    return set()


# --- all keys that are written or read anywhere


def _rooms() -> Iterator[tuple[str, ast.AST]]:
    for package in PACKAGES:
        root = Path(importlib.import_module(package).__path__[0])
        for path in sorted(root.rglob("*.py")):
            inside = path.relative_to(root).with_suffix("").parts
            room = inside[: 2 if inside[0] == "features" else 1]
            yield ".".join((package, *room)), ast.parse(path.read_text())


def _written() -> Iterator[tuple[str, list[str]]]:
    """Keys of dictionaries that the code writes or reads, and those that it asks for of an event, by package."""
    rooms: dict[str, set[str]] = {}
    for room, tree in _rooms():
        rooms.setdefault(room, set()).update(filter(str.isidentifier, _keys_in(tree)))
    return ((room, sorted(room_keys)) for room, room_keys in sorted(rooms.items()) if room_keys)


@cache
def fields() -> frozenset[str]:
    """Names of the fields of all dataclasses: what was the key of a dictionary may have become one. A Stamp is two keys."""
    return frozenset(
        name
        for _, tree in _rooms()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
        for name in _names_of(statement.target.id, ast.unparse(statement.annotation))
    )


def _names_of(field: str, annotation: str) -> tuple[str, ...]:
    return (field, f"{field}_boottime", f"{field}_wall") if "Stamp" in annotation else (field,)


def _keys_in(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            yield from _texts(node.keys)
        elif isinstance(node, ast.Subscript):
            yield from _texts([node.slice])
        elif isinstance(node, ast.Call) and _called(node.func) in _READERS:
            yield from _texts(node.args)


_READERS = {"get", "pop", "_text", "_number", "_word", "_count", "text", "number"}


def _called(function: ast.expr) -> str:
    match function:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def _texts(nodes: Iterable[ast.expr | None]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


if __name__ == "__main__":
    wire = names()
    wire["keys"] = {room: keys for room, keys in wire["keys"].items() if room.startswith(OUTWARD)}
    sys.stdout.write(json.dumps(wire, indent=1, ensure_ascii=False) + "\n")
