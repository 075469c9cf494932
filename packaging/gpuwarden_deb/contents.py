"""Where each file is once the package is installed, besides the virtual environment: one table, and what is made of the parsers.

A file in `systemd/` that no row takes fails the build: nothing is forgotten silently.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpuwarden.service.files import PACKAGED_UNITS, PARTS, PROFILE, SERVICE, sockets
from gpuwarden_deb import completions
from gpuwarden_deb.example import example
from gpuwarden_deb.man_page import man_page
from gpuwarden_deb.paths import COMMAND, PACKAGING, ROOT, BuildError
from gpuwarden_deb.verbs import verbs

UNITS = PACKAGED_UNITS[0]
DOC = "usr/share/doc/gpuwarden"
DOC_FOLDERS = ("docs", "docs/use", "docs/use/runbooks", "docs/reference", "docs/develop")
"""As in the tree, so that a path that a message names, and each link between them, leads somewhere from DOC."""
SBOM = f"{DOC}/sbom.cdx.json"
CONFIGURATION = "etc/gpuwarden/gpuwarden.toml"


@dataclass(frozen=True, slots=True)
class Row:
    """The files that `pattern` finds from the root of the tree, into the folder `target`, under `name` if that is given, in
    which `{stem}` is a file's own name without its end.
    """

    pattern: str
    target: str
    mode: int = 0o644
    name: str = ""


TABLE = (
    *(Row(f"systemd/{part.pattern}", part.packaged, part.mode, part.name) for part in PARTS),
    Row("packaging/gpuwarden.toml", "etc/gpuwarden"),
    Row("README.md", DOC),
    Row("SECURITY.md", DOC),
    Row("CHANGELOG.md", DOC),
    *(Row(f"{folder}/*.md", f"{DOC}/{folder}") for folder in DOC_FOLDERS),
)
LINKS = {
    "usr/bin/gpuwarden": str(COMMAND),
    f"{UNITS}/{SERVICE}.d/10-profile.conf": f"../../../../share/gpuwarden/profiles/{PROFILE}",
}


def lay(root: Path, version: str, epoch: int) -> None:
    """Write the files of the package under `root`. Raises BuildError if a file of systemd/ has no row."""
    taken = {source: target for row in TABLE for source, target in _files(row)}
    forgotten = [file for file in (ROOT / "systemd").rglob("*") if file.is_file() and file not in taken]
    if forgotten:
        raise BuildError(f"no row of contents.py has a target for {', '.join(map(str, forgotten))}")
    for row in TABLE:
        for source, target in _files(row):
            write(root / target, source.read_bytes(), row.mode)
    for link, target in LINKS.items():
        (root / link).parent.mkdir(parents=True, exist_ok=True)
        (root / link).symlink_to(target)
    (root / "etc/gpuwarden/conf.d").mkdir()
    for path, text in _made(version, epoch):
        data = text.encode()
        write(root / path, gzip.compress(data, mtime=0) if path.endswith(".gz") else data)


def _files(row: Row) -> Iterator[tuple[Path, str]]:
    for source in sorted(ROOT.glob(row.pattern)):
        if source.is_file():
            yield source, f"{row.target}/{row.name.format(stem=source.stem) or source.name}"


def _made(version: str, epoch: int) -> Iterator[tuple[str, str]]:
    described = list(verbs())
    yield "usr/share/man/man1/gpuwarden.1.gz", man_page(described, version, epoch)
    yield "usr/share/bash-completion/completions/gpuwarden", completions.bash(described)
    yield "usr/share/zsh/vendor-completions/_gpuwarden", completions.zsh(described)
    yield "usr/share/fish/vendor_completions.d/gpuwarden.fish", completions.fish(described)
    yield f"{DOC}/examples/gpuwarden.toml", example()


def write(file: Path, data: bytes, mode: int = 0o644) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    file.chmod(mode)


def units(root: Path) -> list[str]:
    """The units that are in the package; of a template, all that were made of it."""
    return sorted(file.name.replace("@.", "@*.") for file in (root / UNITS).iterdir() if file.is_file())


def maintainer_scripts(root: Path, folder: Path) -> None:
    """Write dpkg's maintainer scripts into `folder`."""
    for name, text in scripts(root, "deb").items():
        write(folder / name, text.encode(), 0o755)


def scripts(root: Path, kind: str) -> dict[str, str]:
    """Return the scripts of `packaging/maintainer/KIND` by name, with the shared parts and the names of the units filled in."""
    folder = PACKAGING / "maintainer"
    all_units = units(root)
    fields = {f"@{part.name}@\n": part.read_text() for part in (folder / "parts").iterdir()} | {
        "@UNITS@": " ".join(f"'{unit}'" if "*" in unit else unit for unit in all_units),
        "@ENABLED@": " ".join((SERVICE, *sockets())),
        "@LISTENING@": " ".join(unit for unit in all_units if unit.endswith((".socket", ".timer"))),
        "@RESTARTED@": " ".join(
            unit for unit in all_units if unit.endswith(".service") and unit != SERVICE and "@" not in unit
        ),
    }
    filled = {}
    for script in sorted((folder / kind).iterdir()):
        text = script.read_text()
        for field, value in fields.items():
            text = text.replace(field, value)
        filled[script.name] = text
    return filled
