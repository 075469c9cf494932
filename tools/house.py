"""Measure the structure: how far each feature is spread, how many core files import it, and signs of a bad structure.

`make lint` prints both tables. A feature (`gpuwarden/features`) has one folder in the daemon. Exit code 1 if core imports a feature,
a path outside of its folder has its name, or a count exceeds its limit in `MOST`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from gpuwarden.features import FEATURES

ROOT = Path(__file__).parent.parent
DAEMON = ROOT / "daemon/gpuwarden"
PRODUCT = (DAEMON, ROOT / "collectors/gpuwarden_collectors", ROOT / "job/gpuwarden_job")
MOST = {"imports inside of functions": 15, "statements that the formatter skips": 40, "files above 400 lines": 0}
"""Limits of the signs of a bad structure, which may only decrease."""
COMMON = frozenset({"file", "repair", "why"})
"""Features whose name is also a word in names of other files."""


class Spread(NamedTuple):
    """The size of a feature, and how far it is spread."""

    lines: int
    files: int
    folders: int
    importers: int
    """Files of the daemon outside of it that import it."""


def of_feature() -> Mapping[str, frozenset[Path]]:
    """Return the files of each feature in the daemon. A file of two features counts for both."""
    files = sorted(DAEMON.rglob("*.py"))
    return {
        name: frozenset((*(DAEMON / "features" / name).rglob("*.py"), *(path for path in files if _names(path, name))))
        for name in FEATURES
    }


def _names(path: Path, feature: str) -> bool:
    """Return whether a path outside of `features/` has the name of a feature as a word."""
    words = path.relative_to(DAEMON).with_suffix("").parts
    return (
        words[0] != "features"
        and feature not in COMMON
        and any(re.search(rf"(^|_){feature}($|_)", word) for word in words)
    )


def spread(own: Iterable[Path]) -> Spread:
    """Return how far the files of a feature are spread."""
    own = frozenset(own)
    modules = {module(path) for path in own}
    importers = [path for path in DAEMON.rglob("*.py") if path not in own and modules.intersection(imported(path))]
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in own)
    return Spread(lines, len(own), len({_folder(path) for path in own}), len(importers))


def _folder(path: Path) -> Path:
    """Return the folder that counts: of a feature's own folder the whole."""
    features = DAEMON / "features"
    return features / path.relative_to(features).parts[0] if path.is_relative_to(features) else path.parent


def module(path: Path) -> str:
    """Return the dotted name of a module of the daemon."""
    return ".".join(path.relative_to(DAEMON.parent).with_suffix("").parts).removesuffix(".__init__")


@cache
def imported(path: Path) -> frozenset[str]:
    """Return the modules that a file imports, and the names that may be modules. Every feature asks for those of each file."""
    return frozenset(_imported(path))


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def marks() -> Mapping[str, int]:
    """Count the signs of a bad structure."""
    texts = [path.read_text(encoding="utf-8") for folder in PRODUCT for path in folder.rglob("*.py")]
    return {
        "lines of product": sum(len(text.splitlines()) for text in texts),
        "imports inside of functions": sum(text.count("PLC0415") for text in texts),
        "statements that the formatter skips": sum(text.count("# fmt: skip") for text in texts),
        "files above 400 lines": sum(len(text.splitlines()) > 400 for text in texts),
    }


def main() -> int:
    """Print both tables. Returns the exit code."""
    spreads = {name: spread(own) for name, own in of_feature().items()}
    print(f"{'feature':<14}{'lines':>8}{'files':>7}{'folders':>9}{'imported by':>13}")
    for name, row in sorted(spreads.items()):
        print(f"{name:<14}{row.lines:>8,}{row.files:>7}{row.folders:>9}{row.importers:>13}")
    print()
    counts = marks()
    for mark, count in counts.items():
        print(f"{mark:<38}{count:>8,}")
    faults = [
        f"core imports {name}, or it has a second folder"
        for name in FEATURES
        if spreads[name].folders > 1 or spreads[name].importers
    ] + [f"{mark}: {most} at most" for mark, most in MOST.items() if counts[mark] > most]
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
