"""docs/develop/architecture.md names files, modules, functions, classes and events; each of them exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from gpuwarden.health.model import EventKind

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs/develop/architecture.md").read_text(encoding="utf-8")
FOLDERS = (ROOT, ROOT / "daemon/gpuwarden", ROOT / "daemon/gpuwarden/health", ROOT / "collectors/gpuwarden_collectors")
"""What a path may start from; a dotted name starts from one of the two packages."""

QUOTED = sorted({name for name in re.findall(r"`([^`\n]+)`", TEXT) if re.fullmatch(r"[\w./]+", name)})
PATHS = [name for name in QUOTED if "/" in name or name.endswith((".py", ".md", ".toml"))]
DOTTED = [name for name in QUOTED if "." in name and name not in PATHS and not name.endswith(".json")]


@cache
def names(file: Path) -> frozenset[str]:
    """Functions, classes, assigned names and attributes with annotations of a module, those of a class behind its name."""
    qualified_names: set[str] = set()

    def collect(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                qualified_names.add(prefix + node.name)
            if isinstance(node, ast.ClassDef):
                collect(node.body, f"{prefix}{node.name}.")
            targets = (
                node.targets
                if isinstance(node, ast.Assign)
                else [node.target]
                if isinstance(node, ast.AnnAssign)
                else []
            )
            qualified_names.update(prefix + target.id for target in targets if isinstance(target, ast.Name))

    collect(ast.parse(file.read_text(encoding="utf-8")).body, "")
    return frozenset(qualified_names)


def resolves(dotted: str) -> bool:
    """Return True if a package or module has that name, or a module has a function, class, method or constant of the rest of it."""
    parts = dotted.split(".")
    for package in (FOLDERS[1], FOLDERS[3]):
        for length in range(len(parts), 0, -1):
            path, rest = package.joinpath(*parts[:length]), ".".join(parts[length:])
            if path.is_dir() and not rest:
                return True
            file = path.with_suffix(".py")
            if file.is_file() and (not rest or rest in names(file)):
                return True
    return False


@pytest.mark.parametrize("path", PATHS)
def test_a_path_that_is_named_exists(path: str) -> None:
    assert any((folder / path).exists() for folder in FOLDERS)


@pytest.mark.parametrize("name", DOTTED)
def test_a_module_or_function_that_is_named_exists(name: str) -> None:
    if name[0].isupper():  # an attribute of a class of facts
        owner, _, attribute = name.partition(".")
        assert any(
            f"{owner}.{attribute}" in names(file)
            for file in (*FOLDERS[3].rglob("*facts.py"), FOLDERS[3] / "gpu_readings.py")
        )
    else:
        assert resolves(name)


def test_a_name_that_does_not_exist_is_found() -> None:
    assert not resolves("health.judge.nobody")
    assert not resolves("engine.nowhere")
    assert len(DOTTED) > 40
    assert len(PATHS) > 30


def test_every_room_is_named() -> None:
    rooms = {path.parent.name for path in FOLDERS[1].glob("*/__init__.py")}
    assert {room for room in rooms if f"`{room}/`" not in TEXT} == set()


@pytest.mark.parametrize("kind", sorted(set(re.findall(r"\bevent ([A-Z_]+)\b", TEXT))))
def test_an_event_that_is_named_exists(kind: str) -> None:
    assert kind in EventKind.__members__


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`([A-Z][a-z]\w+)`s?", TEXT))))
def test_a_class_that_is_named_exists(name: str) -> None:
    sources = (file for folder in FOLDERS[1:] for file in folder.rglob("*.py"))
    assert any(re.search(rf"^(?:class )?{name}\b", file.read_text(encoding="utf-8"), re.MULTILINE) for file in sources)
