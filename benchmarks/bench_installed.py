"""Disk use of the Debian package, by part, against the libraries alone. Builds the package first, which takes some seconds."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from common import table

sys.path.insert(1, str(Path(__file__).parents[1] / "packaging"))

from gpuwarden_deb.build import build
from gpuwarden_deb.paths import HOME, BuildError
from gpuwarden_deb.sbom import canonical

OURS = "gpuwarden"
MIB = 1 << 20


def files(folder: Path) -> Iterator[Path]:
    return (file for file in folder.rglob("*") if file.is_file() and not file.is_symlink())


def size(paths: Iterator[Path]) -> float:
    """MiB, the files' own bytes."""
    return sum(file.stat().st_size for file in paths) / MIB


def needed(name: str, all_of_it: dict[str, metadata.Distribution], seen: set[str]) -> set[str]:
    """Return the distributions that every installation has, without the extras."""
    if name in all_of_it and name not in seen:
        seen.add(name)
        for text in all_of_it[name].requires or ():
            if "extra ==" not in text:
                needed(canonical(re.split(r"[^\w.-]", text, maxsplit=1)[0]), all_of_it, seen)
    return seen


def of(distribution: metadata.Distribution, site: Path) -> Iterator[Path]:
    """Return its files, and the files compiled from them."""
    for file in distribution.files or ():
        path = site / file
        if path.is_file() and path.is_relative_to(site) and ".." not in file.parts:
            yield path
            if path.suffix == ".py":
                yield from (path.parent / "__pycache__").glob(f"{path.stem}.cpython-*.pyc")


def measured(package: Path, root: Path) -> None:
    subprocess.run(["dpkg-deb", "--extract", package, root], check=True, timeout=120)
    (site,) = (root / HOME.relative_to("/") / "lib").glob("python3*/site-packages")
    distributions = {canonical(each.metadata["Name"]): each for each in metadata.distributions(path=[str(site)])}
    always = needed(OURS, distributions, set()) - {OURS}
    sizes = {name: size(of(distribution, site)) for name, distribution in distributions.items()}
    whole, libraries = size(files(root)), sum(sizes[name] for name in always)
    extras = sum(sizes.values()) - libraries - sizes[OURS]
    rows = [
        ("our code, source and compiled", sizes[OURS]),
        (f"its {len(always)} libraries", libraries),
        (f"{len(distributions) - len(always) - 1} more, for Kubernetes and nvhcd alone", extras),
        ("documents, units, hooks and the rest", whole - sum(sizes.values())),
        ("together", whole),
        ("the package as a file", package.stat().st_size / MIB),
    ]
    table(
        f"What is installed: {package.name}",
        ("part", "MiB", "times the libraries alone"),
        [(name, f"{mib:.1f}", f"{mib / libraries:.2f}") for name, mib in rows],
    )


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        try:
            package = build(Path(folder))
        except BuildError as error:
            print(f"not measured: {error}")
            return 0
        measured(package, Path(folder, "root"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
