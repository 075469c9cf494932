"""What must be true of the package before it is closed: nothing of the build's paths is in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gpuwarden_deb.control import ELF
from gpuwarden_deb.paths import HOME, ROOT, WORK, BuildError

_UNCHECKED = 0b01  # PEP 552: the pyc is found by a hash, and the hash is not compared
_STARTS = (f"#!{HOME}/bin/python".encode(), b"#!/bin/sh\n''':'", ELF)
"""What a file in `bin` begins with: the Python beside it as a path, as the launcher that finds it, or itself."""
_SOURCES = ("daemon", "collectors", "packaging")


def inspect(root: Path) -> None:
    """Raises BuildError with everything that is wrong."""
    wrong = [text for file in sorted(root.rglob("*")) if file.is_file() for text in _wrong(root, file)]
    if wrong:
        raise BuildError("the package is not fit to leave this machine:\n  " + "\n  ".join(wrong[:50]))


def _wrong(root: Path, file: Path) -> Iterator[str]:
    name = f"/{file.relative_to(root)}"
    if file.is_symlink():
        return
    data = file.read_bytes()
    for path in (WORK, *(ROOT / source for source in _SOURCES)):
        if f"{path}/".encode() in data:
            yield f"{name} names {path}"
    if file.name == "direct_url.json":
        yield f"{name} names the origin of a wheel"
    if file.parent == root / HOME.relative_to("/") / "bin" and not data.startswith(_STARTS):
        yield f"{name} is not started by the Python of {HOME}: {data[:60]!r}"
    if file.suffix == ".pyc" and int.from_bytes(data[4:8], "little") != _UNCHECKED:
        yield f"{name} is compiled code that checks its source"
    if file.suffix == ".py" and file.is_relative_to(root / HOME.relative_to("/")) and not _is_compiled(file):
        yield f"{name} is not compiled"


def _is_compiled(file: Path) -> bool:
    return any((file.parent / "__pycache__").glob(f"{file.stem}.cpython-*.pyc"))
