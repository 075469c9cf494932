"""Lists what is missing before this tree can be tagged and published: `make release`. Exit status 1 if anything is."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSIONS = {
    "daemon/gpuwarden/__init__.py": r'^__version__ = "([^"]*)"',
    "job/pyproject.toml": r'^version = "([^"]*)"',
    "kubernetes/chart/Chart.yaml": r"^version: (\S+)",
    "kubernetes/chart/Chart.yaml appVersion": r"^appVersion: (\S+)",
}
"""The places of the version, as file and pattern; the first is the package's."""
PLACEHOLDERS = {
    "https://github.com/gpuwarden/gpuwarden": "the address of the repository",
    "git clone REPOSITORY": "the address of the repository",
    "not released": "the status of a version before its release",
    "No package is published": "how packages were had before they were published",
}
"""Texts that a release must not contain, and what replaces each. Remove one from here if it is right after all."""
SHOWN_MOST = 5
FIGURES = "docs/develop/performance.md"
OLDEST_FIGURE = timedelta(days=30)
"""The greatest age of a measured figure at the tagged commit."""
_FIGURE = re.compile(r"^\| (?P<what>.*?) \|.*\| `(?P<by>\w+)` \| (?P<on>\d{4}-\d{2}-\d{2}) \|$", re.MULTILINE)
_ENTRY = re.compile(r"^## (?P<version>\S+)(?: - (?P<date>\d{4}-\d{2}-\d{2}))?", re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--tag", default="", help="the tag to be set (default: that of the commit, else v and the version)"
    )
    missing = [*problems(ROOT, parser.parse_args().tag)]
    for item in missing:
        print(f"missing: {item}")
    print(f"{len(missing)} things to do before the tag" if missing else "ready to be tagged")
    return 1 if missing else 0


def problems(root: Path, tag: str = "") -> Iterator[str]:
    """Yield a sentence for each thing that is missing in the repository `root`. Raises CalledProcessError."""
    version, *_ = versions(root).values()
    yield from _other_versions(root, version)
    yield from _tags(root, version, tag)
    yield from _changelog(root, version)
    yield from _placeholders(root)
    yield from _old_figures(root)
    if changed := _git(root, "status", "--porcelain"):
        yield f"a clean tree: {_some([line[3:] for line in changed])} not committed"


def versions(root: Path) -> dict[str, str]:
    """Return the version at each place that has one; empty where none is found."""
    by_place = {}
    for place, pattern in VERSIONS.items():
        match = re.search(pattern, (root / place.partition(" ")[0]).read_text(encoding="utf-8"), re.MULTILINE)
        by_place[place] = match[1] if match else ""
    return by_place


def _other_versions(root: Path, version: str) -> Iterator[str]:
    for place, place_version in versions(root).items():
        if place_version != version or not place_version:
            yield f"one version: {place} has {place_version or 'none'}, gpuwarden has {version or 'none'}"


def _tags(root: Path, version: str, tag: str) -> Iterator[str]:
    here = _git(root, "tag", "--points-at", "HEAD")
    for name in [tag] if tag else here:
        if name != f"v{version}":
            yield f"the tag v{version}: {name} is not the version"
    if f"v{version}" in _git(root, "tag") and f"v{version}" not in here:
        yield f"a new version: v{version} is the tag of another commit"


def _changelog(root: Path, version: str) -> Iterator[str]:
    newest = _ENTRY.search((root / "CHANGELOG.md").read_text(encoding="utf-8"))
    if newest is None or newest["version"] != version:
        yield f"CHANGELOG.md: the newest entry is {newest['version'] if newest else 'none'}, not {version}"
    elif newest["date"] is None:
        yield f"CHANGELOG.md: a date, as in '## {version} - 2026-01-31'"


def _placeholders(root: Path) -> Iterator[str]:
    """Yield the placeholders that are left, except in tests, this program, and the history in decisions.md."""
    for text, instead in PLACEHOLDERS.items():
        where = ("--", ":!tests", ":!tools/release.py", ":!docs/develop/decisions.md", ":!CHANGELOG.md")
        if files := _git(root, "grep", "--files-with-matches", "--fixed-strings", text, *where, status=(0, 1)):
            yield f"{instead}: '{text}' is in {_some(files)}"


def _old_figures(root: Path) -> Iterator[str]:
    committed = date.fromisoformat(_git(root, "log", "-1", "--format=%cs")[0])
    text = (root / FIGURES).read_text(encoding="utf-8")
    old = {
        figure["by"]
        for figure in _FIGURE.finditer(text)
        if committed - date.fromisoformat(figure["on"]) > OLDEST_FIGURE
    }
    if old:
        yield f"figures of these weeks in {FIGURES}: run {_some(sorted(old))} again"


def _some(names: list[str]) -> str:
    shown, more = names[:SHOWN_MOST], len(names) - SHOWN_MOST
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _git(root: Path, *words: str, status: tuple[int, ...] = (0,)) -> list[str]:
    done = subprocess.run(["git", "-C", root, *words], capture_output=True, text=True, check=False)
    if done.returncode not in status:
        raise subprocess.CalledProcessError(done.returncode, done.args, done.stdout, done.stderr)
    return done.stdout.splitlines()


if __name__ == "__main__":
    sys.exit(main())
